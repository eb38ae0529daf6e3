package keylane.peers;

import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * The JVM Parallel Consumer copying a topic in transactions, with a handler that does nothing else: BOOTSTRAP.
 *
 * <p>A line of input, "SOURCE TARGET CONCURRENCY INTERVAL_MS", starts a run, which is answered with "running"; the next
 * line, whatever it says, ends it, and is answered with "done".
 */
final class TransactionalBench {
  private TransactionalBench() {}

  public static void main(String[] arguments) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    int run = 0;
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] words = line.split(" ");
      String name = words[0] + "-jvm-" + ProcessHandle.current().pid() + "-" + ++run;
      ParallelStreamProcessor<byte[], byte[]> processor =
          ParallelStreamProcessor.createEosStreamProcessor(
              ParallelConsumerOptions.<byte[], byte[]>builder()
                  .consumer(consumer(arguments[0], name))
                  .producer(producer(arguments[0], name))
                  .commitMode(CommitMode.PERIODIC_TRANSACTIONAL_PRODUCER)
                  .commitInterval(Duration.ofMillis(Long.parseLong(words[3])))
                  .ordering(ProcessingOrder.KEY)
                  .maxConcurrency(Integer.parseInt(words[2]))
                  .build());
      processor.subscribe(List.of(words[0]));
      processor.pollAndProduce(
          context -> new ProducerRecord<>(words[1], context.key(), context.value()));
      System.out.println("running");
      in.readLine();
      processor.closeDontDrainFirst();
      System.out.println("done");
    }
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

  private static KafkaProducer<byte[], byte[]> producer(String bootstrap, String transactionalId) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", bootstrap);
    settings.put("transactional.id", transactionalId);
    return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
  }
}
