import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** A member of a group, or a producer, with Java's clients; compat/members/__init__.py says what it takes and tells. */
public final class Member {
    private static final Duration PAUSE = Duration.ofMillis(200);
    private static final AtomicBoolean ENDED = new AtomicBoolean();

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        String role = arguments[2];
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("key.serializer", StringSerializer.class);
        settings.put("value.serializer", StringSerializer.class);
        settings.put("key.deserializer", StringDeserializer.class);
        settings.put("value.deserializer", StringDeserializer.class);
        if (role.equals("produce")) {
            produce(settings, topic, Integer.parseInt(arguments[3]));
            return;
        }
        Thread reader = new Thread(Member::awaitTheEndOfInput);
        reader.setDaemon(true);
        reader.start();
        settings.put("group.id", arguments[3]);
        if (role.equals("share")) {
            settings.put("share.acknowledgement.mode", "explicit");
            share(settings, topic);
            return;
        }
        settings.put("group.protocol", role);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        if (role.equals("classic")) {
            settings.put("session.timeout.ms", "10000");
            settings.put("heartbeat.interval.ms", "300");
        }
        read(settings, topic);
    }

    private static void produce(Properties settings, String topic, int count) {
        settings.put("acks", "all");
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            for (int number = 0; number < count; number++) {
                String text = String.valueOf(number);
                producer.send(new ProducerRecord<>(topic, text, text), (place, error) -> {
                    if (error != null) {
                        error.printStackTrace();
                        Runtime.getRuntime().halt(1);
                    }
                });
            }
        }
    }

    private static void read(Properties settings, String topic) {
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            while (!ENDED.get()) {
                ConsumerRecords<String, String> records = consumer.poll(PAUSE);
                try {
                    consumer.commitSync();
                } catch (CommitFailedException | RebalanceInProgressException error) {
                    continue; // what was read comes again
                }
                tell(records);
            }
        }
    }

    private static void share(Properties settings, String topic) {
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            while (!ENDED.get()) {
                ConsumerRecords<String, String> records = consumer.poll(PAUSE);
                records.forEach(record -> consumer.acknowledge(record, AcknowledgeType.ACCEPT));
                if (consumer.commitSync().values().stream().allMatch(error -> error.isEmpty())) {
                    tell(records);
                }
            }
        }
    }

    private static void tell(ConsumerRecords<String, String> records) {
        for (ConsumerRecord<String, String> record : records) {
            System.out.println(record.partition() + " " + record.offset());
        }
    }

    private static void awaitTheEndOfInput() {
        try {
            System.in.readAllBytes();
        } catch (java.io.IOException error) {
            error.printStackTrace();
        }
        ENDED.set(true);
    }
}
