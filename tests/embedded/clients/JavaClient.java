import java.time.Duration;
import java.util.*;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.serialization.*;

/** Copies a topic to another in transactions, as Kafka's own client does it; prints what it then finds there. */
public class JavaClient {
    static final int COUNT = 200, BATCH = 20;

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> common = Map.of("bootstrap.servers", arguments[0]);
        copies(common, "classic");
        copies(common, "consumer");
        matches(common);
        fence(common);
    }

    /** Reads by a pattern of the broker's: then this client knows its topics by their ids alone at first. */
    static void matches(Map<String, Object> common) throws Exception {
        Map<String, Object> more = with(common, "group.id", "matchers", "group.protocol", "consumer",
            "auto.offset.reset", "earliest");
        try (var consumer = consumer(more)) {
            consumer.subscribe(new SubscriptionPattern("java-in-.*"));
            long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(60);
            int found = 0;
            while (found < 2 * COUNT && System.nanoTime() < until)
                found += consumer.poll(Duration.ofMillis(200)).count();
            System.out.println("matched " + found);
        }
    }

    static void copies(Map<String, Object> common, String protocol) throws Exception {
        String in = "java-in-" + protocol, out = "java-out-" + protocol;
        try (Admin admin = Admin.create(common)) {
            admin.createTopics(List.of(new NewTopic(in, 3, (short) 1), new NewTopic(out, 3, (short) 1)))
                .all().get(30, TimeUnit.SECONDS);
            fill(common, in);
            copy(common, in, out, protocol);
            int found = 0;
            for (String value : read(common, out, protocol)) found += value.startsWith("copied ") ? 1 : 0;
            System.out.println("copied " + found);
            System.out.println("groups " + admin.listGroups().all().get(30, TimeUnit.SECONDS).stream()
                .filter(each -> each.groupId().equals("copiers-" + protocol))
                .map(each -> each.type().get() + " " + each.groupState().get()).toList());
            long offsets = admin.listConsumerGroupOffsets("copiers-" + protocol).partitionsToOffsetAndMetadata()
                .get(30, TimeUnit.SECONDS).values().stream().mapToLong(OffsetAndMetadata::offset).sum();
            System.out.println("offsets " + offsets);
            System.out.println("transactions " + admin.listTransactions().all().get(30, TimeUnit.SECONDS).stream()
                .filter(each -> each.transactionalId().equals("copier-" + protocol)).map(each -> each.state()).toList());
        }
    }

    static Map<String, Object> with(Map<String, Object> common, Object... more) {
        Map<String, Object> all = new HashMap<>(common);
        for (int at = 0; at < more.length; at += 2) all.put((String) more[at], more[at + 1]);
        return all;
    }

    static KafkaProducer<String, String> producer(Map<String, Object> common, Object... more) {
        return new KafkaProducer<>(with(common, more), new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(Map<String, Object> common, Object... more) {
        return new KafkaConsumer<>(with(common, more), new StringDeserializer(), new StringDeserializer());
    }

    static void fill(Map<String, Object> common, String topic) {
        try (var producer = producer(common, "compression.type", "lz4")) {
            for (int number = 0; number < COUNT; number++)
                producer.send(new ProducerRecord<>(topic, "" + number, "value " + number));
        }
    }

    static void copy(Map<String, Object> common, String in, String out, String protocol) {
        try (var producer = producer(common, "transactional.id", "copier-" + protocol);
             var consumer = consumer(common, "group.id", "copiers-" + protocol, "group.protocol", protocol,
                 "auto.offset.reset", "earliest", "enable.auto.commit", false)) {
            producer.initTransactions();
            consumer.subscribe(List.of(in));
            int copied = 0, turn = 0;
            long until = System.nanoTime() + 60_000_000_000L;
            while (copied < COUNT && System.nanoTime() < until) {
                var found = consumer.poll(Duration.ofMillis(200));
                if (found.isEmpty()) continue;
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                boolean aborts = turn++ % 3 == 0;
                producer.beginTransaction();
                for (var each : found) {
                    producer.send(new ProducerRecord<>(out, each.key(), (aborts ? "aborted " : "copied ") + each.value()));
                    offsets.put(new TopicPartition(each.topic(), each.partition()), new OffsetAndMetadata(each.offset() + 1));
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                if (aborts) {
                    producer.abortTransaction();
                    for (var place : consumer.assignment()) {
                        var before = consumer.committed(Set.of(place)).get(place);
                        consumer.seek(place, before == null ? 0 : before.offset());
                    }
                } else {
                    producer.commitTransaction();
                    copied += found.count();
                }
            }
        }
    }

    static List<String> read(Map<String, Object> common, String topic, String protocol) {
        List<String> values = new ArrayList<>();
        try (var consumer = consumer(common, "isolation.level", "read_committed")) {
            var places = consumer.partitionsFor(topic).stream()
                .map(each -> new TopicPartition(topic, each.partition())).toList();
            consumer.assign(places);
            consumer.seekToBeginning(places);
            var ends = consumer.endOffsets(places);
            while (places.stream().anyMatch(each -> consumer.position(each) < ends.get(each)))
                for (var each : consumer.poll(Duration.ofMillis(200))) values.add(each.value());
        }
        return values;
    }

    static void fence(Map<String, Object> common) {
        try (var old = producer(common, "transactional.id", "fenced"); var young = producer(common, "transactional.id", "fenced")) {
            old.initTransactions();
            old.beginTransaction();
            old.send(new ProducerRecord<>("java-out-classic", "late"));
            old.flush();
            young.initTransactions();
            try {
                old.commitTransaction();
                System.out.println("not fenced");
            } catch (ProducerFencedException | InvalidProducerEpochException expected) {
                System.out.println("fenced");
            }
        }
    }
}
