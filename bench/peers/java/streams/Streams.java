package keylane.peers;

import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * An application of Kafka Streams with state, exactly once: to the value of each record it adds how many its key has had,
 * such as "17" to "17 3". It runs until it is killed, and ends with 1 when Streams gives up.
 *
 * Arguments: SERVERS APPLICATION INPUT OUTPUT FOLDER.
 */
public final class Streams {
    private static final String STORE = "counts";

    public static void main(String[] arguments) throws InterruptedException {
        Properties settings = new Properties();
        settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        settings.put(StreamsConfig.APPLICATION_ID_CONFIG, arguments[1]);
        settings.put(StreamsConfig.STATE_DIR_CONFIG, arguments[4]);
        settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.String().getClass());
        // What a process that was killed leaves behind is over soon.
        settings.put(StreamsConfig.consumerPrefix("session.timeout.ms"), "6000");
        settings.put(StreamsConfig.producerPrefix("transaction.timeout.ms"), "5000");

        StreamsBuilder builder = new StreamsBuilder();
        builder.addStateStore(
                Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore(STORE), Serdes.String(), Serdes.Long()));
        builder.<String, String>stream(arguments[2]).processValues(Counting::new, STORE).to(arguments[3]);

        CountDownLatch over = new CountDownLatch(1);
        KafkaStreams streams = new KafkaStreams(builder.build(), settings);
        streams.setStateListener((state, before) -> {
            if (state == KafkaStreams.State.ERROR || state == KafkaStreams.State.NOT_RUNNING) {
                over.countDown();
            }
        });
        streams.start();
        over.await();
        streams.close(Duration.ofSeconds(1));
        Runtime.getRuntime().halt(1);
    }

    private static final class Counting implements FixedKeyProcessor<String, String, String> {
        private FixedKeyProcessorContext<String, String> context;
        private KeyValueStore<String, Long> counts;

        @Override
        public void init(FixedKeyProcessorContext<String, String> context) {
            this.context = context;
            this.counts = context.getStateStore(STORE);
        }

        @Override
        public void process(FixedKeyRecord<String, String> record) {
            Long before = counts.get(record.key());
            long count = before == null ? 1 : before + 1;
            counts.put(record.key(), count);
            context.forward(record.withValue(record.value() + " " + count));
        }
    }
}
