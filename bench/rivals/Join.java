// Rival: orders joined with a table of customers by Kafka Streams' DSL, exactly_once_v2, with its cache.
//
//     java -cp JARS bench/rivals/Join.java bootstrap=HOST:PORT orders=T customers=T out=T id=APP dir=D
//
// Clock: first record of either topic deserialized, to all offsets of both stable in the group's committed offsets.

import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.Produced;

public class Join {
    static final AtomicLong firstNs = new AtomicLong();
    static volatile long firstCpuNs;

    static long cpuNs() {
        var bean = (com.sun.management.OperatingSystemMXBean) java.lang.management.ManagementFactory.getOperatingSystemMXBean();
        return bean.getProcessCpuTime();
    }

    static byte[] clocked(String topic, byte[] value) {
        if (firstNs.get() == 0 && firstNs.compareAndSet(0, System.nanoTime())) firstCpuNs = cpuNs();
        return value;
    }

    static byte[] joined(byte[] order, byte[] customer) {
        byte[] out = java.util.Arrays.copyOf(order, order.length + customer.length - 1); // {"id":7} and {"name":"x"}: no JSON is parsed
        out[order.length - 1] = ',';
        System.arraycopy(customer, 1, out, order.length, customer.length - 1);
        return out;
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (String arg : args) given.put(arg.substring(0, arg.indexOf('=')), arg.substring(arg.indexOf('=') + 1));
        String orders = given.get("orders"), customers = given.get("customers"), id = given.get("id");
        Properties connect = new Properties();
        connect.put("bootstrap.servers", given.get("bootstrap"));
        Admin admin = Admin.create(connect);
        Map<TopicPartition, OffsetSpec> latest = new HashMap<>();
        for (var topic : admin.describeTopics(List.of(orders, customers)).allTopicNames().get().values())
            for (var info : topic.partitions()) latest.put(new TopicPartition(topic.name(), info.partition()), OffsetSpec.latest());
        long total = 0;
        for (var end : admin.listOffsets(latest).all().get().values()) total += end.offset();

        Properties config = new Properties();
        config.putAll(connect);
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, id);
        config.put(StreamsConfig.STATE_DIR_CONFIG, given.get("dir"));
        config.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, "1");
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        config.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        if (given.containsKey("cache")) config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, given.get("cache"));
        Serde<byte[]> bytes = Serdes.serdeFrom(new ByteArraySerializer(), Join::clocked);
        StreamsBuilder builder = new StreamsBuilder();
        var table = builder.table(customers, Consumed.with(Serdes.Bytes(), bytes));
        builder.stream(orders, Consumed.with(Serdes.Bytes(), bytes))
            .join(table, Join::joined, Joined.with(Serdes.Bytes(), bytes, bytes))
            .to(given.get("out"), Produced.with(Serdes.Bytes(), bytes));

        KafkaStreams streams = new KafkaStreams(builder.build(), config);
        streams.start();
        var stable = new ListConsumerGroupOffsetsOptions().requireStable(true);
        for (long committed = 0; committed < total; Thread.sleep(5)) {
            if (firstNs.get() == 0) continue;
            committed = 0;
            for (var each : admin.listConsumerGroupOffsets(id, stable).partitionsToOffsetAndMetadata().get().entrySet())
                if (latest.containsKey(each.getKey()) && each.getValue() != null) committed += each.getValue().offset();
        }
        double seconds = (System.nanoTime() - firstNs.get()) / 1e9;
        String result = String.format("RESULT streams-join rate=%.0f wall_s=%.2f cpu_us=%.2f", total / seconds, seconds,
            (cpuNs() - firstCpuNs) / 1e3 / total);
        for (String line : Files.readAllLines(Path.of("/proc/self/status"), StandardCharsets.UTF_8))
            if (line.startsWith("VmHWM")) result += " rss_mb=" + Long.parseLong(line.replaceAll("\\D+", "")) / 1024;
        System.out.println(result);
        streams.close(Duration.ofSeconds(20));
        admin.close();
    }
}
