package keylane.peers;

import static java.util.stream.Collectors.toSet;

import io.confluent.parallelconsumer.PCRetriableException;
import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.Arrays;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * One turn of a group by the JVM Parallel Consumer: BOOTSTRAP GROUP TOPIC ORDERING.
 *
 * <p>Its first line of input names the records that stay pending ("-" or PARTITION:OFFSET,...): they fail and wait for
 * a retry that does not come in time. It says "ran PARTITION OFFSET" and "left PARTITION OFFSET" as it goes. On "close"
 * it closes without draining, which commits, and says "closed".
 */
final class HandOver {
  private HandOver() {}

  public static void main(String[] arguments) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    Set<String> pending = Arrays.stream(in.readLine().split(",")).collect(toSet());
    ParallelStreamProcessor<byte[], byte[]> processor =
        ParallelStreamProcessor.createEosStreamProcessor(
            ParallelConsumerOptions.<byte[], byte[]>builder()
                .consumer(consumer(arguments[0], arguments[1]))
                .ordering(ProcessingOrder.valueOf(arguments[3]))
                .commitMode(CommitMode.PERIODIC_CONSUMER_SYNC)
                .retryDelayProvider(context -> Duration.ofHours(1))
                .build());
    processor.subscribe(List.of(arguments[2]));
    processor.poll(context -> run(context.getSingleConsumerRecord(), pending));
    String line = in.readLine();
    if (line == null) System.exit(1); // the one who asked is gone
    processor.closeDontDrainFirst();
    System.out.println("closed");
  }

  private static void run(ConsumerRecord<byte[], byte[]> record, Set<String> pending) {
    boolean left = pending.contains(record.partition() + ":" + record.offset());
    System.out.println((left ? "left " : "ran ") + record.partition() + " " + record.offset());
    if (left) throw new PCRetriableException("stays pending");
  }

  private static KafkaConsumer<byte[], byte[]> consumer(String bootstrap, String group) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", bootstrap);
    settings.put("group.id", group);
    settings.put("enable.auto.commit", "false");
    settings.put("auto.offset.reset", "earliest");
    settings.put("isolation.level", "read_committed");
    return new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
  }
}
