import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * A member of a group that commits what it has read: BOOTSTRAP TOPIC GROUP COUNT PROTOCOL (classic or consumer).
 *
 * <p>It tells of each acknowledged commit in a line, the offsets by partition as JSON, as tests/kit/offset_client.py
 * does with other libraries. It ends when COUNT records are committed; with an error, if a record comes that an
 * acknowledged commit covers.
 */
public final class OffsetClient {
  private OffsetClient() {}

  public static void main(String[] arguments) throws Exception {
    String topic = arguments[1];
    long count = Long.parseLong(arguments[3]);
    Map<Integer, Long> position = new HashMap<>();
    Map<Integer, Long> acknowledged = new HashMap<>();
    try (KafkaConsumer<byte[], byte[]> consumer = consumer(arguments[0], arguments[2], arguments[4])) {
      consumer.subscribe(List.of(topic));
      while (acknowledged.values().stream().mapToLong(Long::longValue).sum() < count) {
        for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(200))) {
          if (record.offset() < acknowledged.getOrDefault(record.partition(), 0L)) {
            System.err.println(record + " again, behind " + acknowledged);
            System.exit(1);
          }
          position.put(record.partition(), record.offset() + 1);
        }
        if (position.isEmpty()) continue;
        try {
          consumer.commitSync(position.entrySet().stream().collect(Collectors.toMap(
              one -> new TopicPartition(topic, one.getKey()), one -> new OffsetAndMetadata(one.getValue()))));
        } catch (KafkaException error) {
          System.err.println(error);
          continue;
        }
        acknowledged.putAll(position);
        System.out.println(position.entrySet().stream()
            .map(one -> String.format(Locale.ROOT, "\"%d\": %d", one.getKey(), one.getValue()))
            .collect(Collectors.joining(", ", "{", "}")));
        Thread.sleep(20);
      }
    }
  }

  private static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, String group, String protocol) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", bootstrap);
    settings.put("group.id", group);
    settings.put("group.protocol", protocol);
    settings.put("auto.offset.reset", "earliest");
    settings.put("enable.auto.commit", "false");
    settings.put("max.poll.records", "10");
    if (protocol.equals("classic")) settings.put("session.timeout.ms", "10000");
    return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }
}
