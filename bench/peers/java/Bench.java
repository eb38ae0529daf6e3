package keylane.peers;

import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Instant;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/**
 * The JVM Parallel Consumer with its defaults on a given topic, run by run in one warm JVM: BOOTSTRAP.
 *
 * <p>Each line of input is a run: TOPIC ORDERING RECORDS CONCURRENCY sleep|noop|latency. A record's value is the time
 * that its handler sleeps, in microseconds; a handler measures what it really took, by partition for PARTITION and else
 * by key. Each run is answered with: FROM_SUBSCRIBE_S FROM_FIRST_S SUM_S HEAVIEST_S RECORDS_DONE. For latency a value is
 * nanoseconds since the epoch, and the answer is P50_MS P99_MS RECORDS_DONE over the second half of the records.
 */
final class Bench {
  private static final long LIMIT_S = 300;
  private static final AtomicInteger RUN = new AtomicInteger();

  private final int records;
  private final ProcessingOrder ordering;
  private final AtomicInteger begun = new AtomicInteger();
  private final AtomicInteger done = new AtomicInteger();
  private final AtomicLong firstNs = new AtomicLong();
  private final AtomicLong lastNs = new AtomicLong();
  private final CountDownLatch finished = new CountDownLatch(1);
  private final long[] agesNs;
  private final Map<String, LongAdder> tookNs = new ConcurrentHashMap<>();

  private Bench(int records, ProcessingOrder ordering) {
    this.records = records;
    this.ordering = ordering;
    this.agesNs = new long[records];
  }

  public static void main(String[] arguments) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
    for (String line = in.readLine(); line != null; line = in.readLine()) {
      String[] words = line.split(" ");
      Bench bench = new Bench(Integer.parseInt(words[2]), ProcessingOrder.valueOf(words[1]));
      System.out.println(bench.run(arguments[0], words[0], Integer.parseInt(words[3]), words[4]));
    }
  }

  private String run(String bootstrap, String topic, int concurrency, String work) throws Exception {
    ParallelStreamProcessor<String, String> processor =
        ParallelStreamProcessor.createEosStreamProcessor(
            ParallelConsumerOptions.<String, String>builder()
                .consumer(consumer(bootstrap, topic + "-jvm-" + ProcessHandle.current().pid() + "-" + RUN.incrementAndGet()))
                .ordering(ordering)
                .maxConcurrency(concurrency)
                .build());
    long startNs = System.nanoTime();
    processor.subscribe(List.of(topic));
    processor.poll(context -> handle(context.getSingleConsumerRecord(), work));
    boolean inTime = finished.await(LIMIT_S, TimeUnit.SECONDS);
    processor.closeDontDrainFirst();
    if (!inTime) return "error: " + done.get() + " of " + records + " records in " + LIMIT_S + " s";
    if (work.equals("latency")) return ages();
    long sum = tookNs.values().stream().mapToLong(LongAdder::sum).sum();
    long heaviest = tookNs.values().stream().mapToLong(LongAdder::sum).max().orElse(0);
    return String.format(
        "%.6f %.6f %.6f %.6f %d",
        (lastNs.get() - startNs) / 1e9, (lastNs.get() - firstNs.get()) / 1e9, sum / 1e9, heaviest / 1e9, done.get());
  }

  private String ages() {
    long[] second = Arrays.copyOfRange(agesNs, records / 2, records);
    Arrays.sort(second);
    return String.format(
        "%.3f %.3f %d", second[second.length / 2] / 1e6, second[(int) (second.length * 99L / 100)] / 1e6, done.get());
  }

  private void handle(ConsumerRecord<String, String> record, String work) {
    if (work.equals("latency")) {
      Instant now = Instant.now();
      long nowNs = now.getEpochSecond() * 1_000_000_000L + now.getNano();
      agesNs[begun.getAndIncrement()] = nowNs - Long.parseLong(record.value());
      if (done.incrementAndGet() == records) finished.countDown();
      return;
    }
    boolean sleep = work.equals("sleep");
    if (begun.getAndIncrement() == 0) firstNs.set(System.nanoTime());
    if (sleep) {
      long startNs = System.nanoTime();
      long endNs = startNs + 1000 * Long.parseLong(record.value());
      // Thread.sleep rounds to milliseconds.
      for (long now = startNs; now < endNs; now = System.nanoTime()) LockSupport.parkNanos(endNs - now);
      String lane = ordering == ProcessingOrder.PARTITION ? String.valueOf(record.partition()) : record.key();
      tookNs.computeIfAbsent(lane, key -> new LongAdder()).add(System.nanoTime() - startNs);
    }
    if (done.incrementAndGet() == records) {
      lastNs.set(System.nanoTime());
      finished.countDown();
    }
  }

  private static KafkaConsumer<String, String> consumer(String bootstrap, String group) {
    Properties settings = new Properties();
    settings.put("bootstrap.servers", bootstrap);
    settings.put("group.id", group);
    settings.put("enable.auto.commit", "false");
    settings.put("auto.offset.reset", "earliest");
    return new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer());
  }
}
