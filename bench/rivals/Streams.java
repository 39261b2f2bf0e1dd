// Rival: the same fold as a Kafka Streams processor over a persistent store, exactly_once_v2 or at_least_once.
//
//     java -cp JARS bench/rivals/Streams.java bootstrap=HOST:PORT topic=T id=APP dir=D [guarantee=eos|alo] [restore=1]
//     ... work=rekey out=TOPIC   sends each record on under the key that its value tells, in place of folding
//
// Clock: first record in process() to all source offsets stable in the group's committed offsets; for restore=1,
// onRestoreStart to the last onRestoreEnd. The state's counts are summed afterwards and must equal the input.

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.Stores;

public class Streams {
    static final AtomicLong firstNs = new AtomicLong(), seen = new AtomicLong();
    static volatile long firstCpuNs;
    static final Map<Integer, Long> ends = new HashMap<>();

    static long cpuNs() {
        var bean = (com.sun.management.OperatingSystemMXBean) java.lang.management.ManagementFactory.getOperatingSystemMXBean();
        return bean.getProcessCpuTime();
    }

    static class Fold implements Processor<byte[], byte[], Void, Void> {
        ProcessorContext<Void, Void> context;
        KeyValueStore<Bytes, byte[]> store;
        long done;

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            this.context = context;
            this.store = context.getStateStore("claims");
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            if (firstNs.compareAndSet(0, System.nanoTime())) firstCpuNs = cpuNs();
            byte[] value = record.value();
            int[] slash = new int[8];
            int found = 0;
            for (int i = 0; i < value.length; i++) {
                if (value[i] == '/') {
                    if (found == 8) throw new IllegalStateException("too many fields");
                    slash[found++] = i;
                }
            }
            if (found != 8) throw new IllegalStateException("too few fields");
            long time = number(value, slash[1] + 1, slash[2]), offset = number(value, slash[7] + 1, value.length);
            Bytes key = Bytes.wrap(java.util.Arrays.copyOfRange(value, slash[4] + 1, slash[7]));
            byte[] old = store.get(key);
            long count = old == null ? 0 : ByteBuffer.wrap(old).getLong(16);
            int owner = slash[4] - slash[2] - 1;
            store.put(key, ByteBuffer.allocate(24 + owner).putLong(time).putLong(offset).putLong(count + 1).put(value, slash[2] + 1, owner).array());
            int partition = context.recordMetadata().get().partition();
            if (++done == ends.get(partition)) context.commit();
            seen.incrementAndGet();
        }

        static long number(byte[] text, int from, int to) {
            long n = 0;
            for (int i = from; i < to; i++) {
                int digit = text[i] - '0';
                if (digit < 0 || digit > 9) throw new IllegalStateException("not a number");
                n = n * 10 + digit;
            }
            return n;
        }
    }

    static class Rekey implements Processor<byte[], byte[], byte[], byte[]> {
        ProcessorContext<byte[], byte[]> context;
        long done;

        @Override
        public void init(ProcessorContext<byte[], byte[]> context) {
            this.context = context;
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            if (firstNs.compareAndSet(0, System.nanoTime())) firstCpuNs = cpuNs();
            byte[] value = record.value();
            int from = 0, to = value.length;
            for (int i = 0, found = 0; found < 5; i++) if (value[i] == '/' && ++found == 5) from = i + 1;
            while (value[--to] != '/');
            context.forward(record.withKey(java.util.Arrays.copyOfRange(value, from, to)));
            if (++done == ends.get(context.recordMetadata().get().partition())) context.commit();
            seen.incrementAndGet();
        }
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (String arg : args) given.put(arg.substring(0, arg.indexOf('=')), arg.substring(arg.indexOf('=') + 1));
        String topic = given.get("topic"), id = given.get("id");
        boolean restore = "1".equals(given.get("restore")), eos = !"alo".equals(given.get("guarantee"));
        Properties connect = new Properties();
        connect.put("bootstrap.servers", given.get("bootstrap"));
        Admin admin = Admin.create(connect);
        Map<TopicPartition, OffsetSpec> latest = new HashMap<>();
        for (var info : admin.describeTopics(java.util.List.of(topic)).allTopicNames().get().get(topic).partitions())
            latest.put(new TopicPartition(topic, info.partition()), OffsetSpec.latest());
        long total = 0;
        for (var end : admin.listOffsets(latest).all().get().entrySet()) {
            ends.put(end.getKey().partition(), end.getValue().offset());
            total += end.getValue().offset();
        }

        Properties config = new Properties();
        config.putAll(connect);
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, id);
        config.put(StreamsConfig.STATE_DIR_CONFIG, given.get("dir"));
        config.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, "1");
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, eos ? StreamsConfig.EXACTLY_ONCE_V2 : StreamsConfig.AT_LEAST_ONCE);
        config.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        if (given.containsKey("cache")) config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, given.get("cache"));
        Topology topology = new Topology();
        topology.addSource("source", new ByteArrayDeserializer(), new ByteArrayDeserializer(), topic);
        boolean rekey = "rekey".equals(given.get("work"));
        if (rekey) {
            topology.addProcessor("rekey", Rekey::new, "source");
            topology.addSink("sink", given.get("out"), new ByteArraySerializer(), new ByteArraySerializer(), "rekey");
        } else {
            topology.addProcessor("fold", Fold::new, "source");
            topology.addStateStore(
                Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("claims"), Serdes.Bytes(), Serdes.ByteArray()).withCachingEnabled(), "fold");
        }

        KafkaStreams streams = new KafkaStreams(topology, config);
        AtomicLong restoreFrom = new AtomicLong(), restoreTo = new AtomicLong(), restored = new AtomicLong();
        streams.setGlobalStateRestoreListener(new StateRestoreListener() {
            @Override
            public void onRestoreStart(TopicPartition partition, String store, long from, long to) {
                restoreFrom.compareAndSet(0, System.nanoTime());
            }

            @Override
            public void onBatchRestored(TopicPartition partition, String store, long end, long records) {
            }

            @Override
            public void onRestoreEnd(TopicPartition partition, String store, long records) {
                restored.addAndGet(records);
                restoreTo.set(System.nanoTime());
            }
        });
        long startedNs = System.nanoTime();
        streams.start();
        String result;
        if (restore) {
            while (streams.state() != KafkaStreams.State.RUNNING) Thread.sleep(5);
            double seconds = (restoreTo.get() - restoreFrom.get()) / 1e9;
            result = String.format("RESULT streams-restore rate=%.0f wall_s=%.2f records=%d ready_s=%.2f", restored.get() / seconds, seconds,
                restored.get(), (System.nanoTime() - startedNs) / 1e9);
        } else {
            var stable = new ListConsumerGroupOffsetsOptions().requireStable(true);
            for (long committed = 0; committed < total; Thread.sleep(5)) {
                if (seen.get() < total) continue;
                committed = 0;
                for (var each : admin.listConsumerGroupOffsets(id, stable).partitionsToOffsetAndMetadata().get().entrySet())
                    if (each.getKey().topic().equals(topic) && each.getValue() != null) committed += each.getValue().offset();
            }
            double seconds = (System.nanoTime() - firstNs.get()) / 1e9;
            result = String.format("RESULT streams-%s rate=%.0f wall_s=%.2f cpu_us=%.2f", eos ? "eos" : "alo", total / seconds, seconds,
                (cpuNs() - firstCpuNs) / 1e3 / total);
        }
        long sum = rekey ? total : 0;
        if (!rekey) try (var rows = streams.store(StoreQueryParameters.fromNameAndType("claims", QueryableStoreTypes.<Bytes, byte[]>keyValueStore())).all()) {
            while (rows.hasNext()) sum += ByteBuffer.wrap(rows.next().value).getLong(16);
        }
        if (sum != total) throw new IllegalStateException("state counts " + sum + " of " + total);
        for (String line : Files.readAllLines(Path.of("/proc/self/status"), StandardCharsets.UTF_8))
            if (line.startsWith("VmHWM")) result += " rss_mb=" + Long.parseLong(line.replaceAll("\\D+", "")) / 1024;
        System.out.println(result);
        streams.close(Duration.ofSeconds(20));
        admin.close();
    }
}
