package keylane.peers;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A transactional producer: BOOTSTRAP TRANSACTIONAL_ID TOPIC GROUP.
 *
 * <p>Each line of input, "commit VALUE OFFSET" or "abort VALUE OFFSET", is one transaction: VALUE goes to partition 0 of
 * the topic, OFFSET with the metadata "map-OFFSET" to the group. It answers "done", or the name of the error.
 */
final class Transactions {
  private Transactions() {}

  public static void main(String[] arguments) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    try (KafkaProducer<byte[], byte[]> producer = producer(arguments[0], arguments[1])) {
      producer.initTransactions();
      System.out.println("ready");
      for (String line = in.readLine(); line != null; line = in.readLine()) {
        System.out.println(run(producer, arguments[2], arguments[3], line.split(" ")));
      }
    }
  }

  private static String run(
      KafkaProducer<byte[], byte[]> producer, String topic, String group, String[] words) throws Exception {
    long offset = Long.parseLong(words[2]);
    try {
      producer.beginTransaction();
      producer.send(new ProducerRecord<>(topic, 0, null, words[1].getBytes())).get();
      producer.sendOffsetsToTransaction(
          Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(offset, "map-" + offset)),
          new ConsumerGroupMetadata(group));
      if (words[0].equals("commit")) producer.commitTransaction();
      else producer.abortTransaction();
      return "done";
    } catch (KafkaException error) {
      return error.getClass().getSimpleName();
    } catch (java.util.concurrent.ExecutionException error) {
      return error.getCause().getClass().getSimpleName();
    }
  }

  private static KafkaProducer<byte[], byte[]> producer(String bootstrap, String transactionalId) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", bootstrap);
    settings.put("transactional.id", transactionalId);
    return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
  }
}
