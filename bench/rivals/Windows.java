// Rival: windows, sessions and interval joins by Kafka Streams' DSL, exactly_once_v2, with its cache.
//
//     java -cp JARS bench/rivals/Windows.java work=tumbling|sessions|interval bootstrap=HOST:PORT in=T[,T] out=T id=APP dir=D
//     ... work=rekeyed|near stay=1   behind a re-key by "page", and a join 10 s before and after; runs until it is killed
//
// Event time is the number behind "at": in a record's JSON. Windows are final: suppressed until they are closed.
// Clock: first record's time extracted, to all offsets of the input stable in the group's committed offsets.

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
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.TimestampExtractor;

public class Windows {
    static final AtomicLong firstNs = new AtomicLong();
    static volatile long firstCpuNs;
    static final byte[] AT = "\"at\":".getBytes(StandardCharsets.US_ASCII);

    static long cpuNs() {
        var bean = (com.sun.management.OperatingSystemMXBean) java.lang.management.ManagementFactory.getOperatingSystemMXBean();
        return bean.getProcessCpuTime();
    }

    public static class EventTime implements TimestampExtractor {
        @Override
        public long extract(ConsumerRecord<Object, Object> record, long partitionTime) {
            if (firstNs.get() == 0 && firstNs.compareAndSet(0, System.nanoTime())) firstCpuNs = cpuNs();
            byte[] value = (byte[]) record.value();
            for (int i = 0; i <= value.length - AT.length; i++) {
                int j = 0;
                while (j < AT.length && value[i + j] == AT[j]) j++;
                if (j < AT.length) continue;
                long at = 0;
                for (i += j; i < value.length && value[i] >= '0' && value[i] <= '9'; i++) at = at * 10 + value[i] - '0';
                return at;
            }
            throw new IllegalStateException("a record without a time");
        }
    }

    static byte[] result(Windowed<Bytes> key, Long count) {
        String text = "{\"key\":\"" + new String(key.key().get(), StandardCharsets.UTF_8) + "\",\"start_ms\":" + key.window().start() + ",\"end_ms\":"
            + key.window().end() + ",\"value\":" + count + "}";
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static Bytes page(byte[] value) {
        String text = new String(value, StandardCharsets.UTF_8);
        int from = text.indexOf("\"page\":\"") + 8;
        return Bytes.wrap(text.substring(from, text.indexOf('"', from)).getBytes(StandardCharsets.UTF_8));
    }

    static byte[] pair(byte[] left, byte[] right) {
        byte[] out = new byte[left.length + right.length + 3];
        out[0] = '[';
        System.arraycopy(left, 0, out, 1, left.length);
        out[left.length + 1] = ',';
        System.arraycopy(right, 0, out, left.length + 2, right.length);
        out[out.length - 1] = ']';
        return out;
    }

    static void build(String work, StreamsBuilder builder, List<String> in, String out) {
        var consumed = Consumed.with(Serdes.Bytes(), Serdes.ByteArray()).withTimestampExtractor(new EventTime());
        var produced = Produced.with(Serdes.Bytes(), Serdes.ByteArray());
        KStream<Bytes, byte[]> first = builder.stream(in.get(0), consumed);
        if (work.equals("interval") || work.equals("near")) {
            KStream<Bytes, byte[]> second = builder.stream(in.get(1), consumed);
            var near = JoinWindows.ofTimeDifferenceAndGrace(Duration.ofSeconds(10), Duration.ofMinutes(5));
            if (work.equals("interval")) near = near.before(Duration.ZERO);
            first.join(second, Windows::pair, near, StreamJoined.with(Serdes.Bytes(), Serdes.ByteArray(), Serdes.ByteArray())).to(out, produced);
            return;
        }
        boolean rekeyed = work.equals("rekeyed");
        var serdes = Grouped.with(Serdes.Bytes(), Serdes.ByteArray());
        var grouped = rekeyed ? first.groupBy((key, value) -> page(value), serdes) : first.groupByKey(serdes);
        KTable<Windowed<Bytes>, Long> counts = rekeyed || work.equals("tumbling")
            ? grouped.windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofHours(1), rekeyed ? Duration.ZERO : Duration.ofMinutes(5)))
                .count(Materialized.with(Serdes.Bytes(), Serdes.Long()))
            : grouped.windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofMinutes(10), Duration.ofMinutes(5)))
                .count(Materialized.with(Serdes.Bytes(), Serdes.Long()));
        counts.suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
            .toStream().map((key, count) -> KeyValue.pair(key.key(), result(key, count))).to(out, produced);
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (String arg : args) given.put(arg.substring(0, arg.indexOf('=')), arg.substring(arg.indexOf('=') + 1));
        String id = given.get("id"), work = given.get("work");
        List<String> in = List.of(given.get("in").split(","));
        Properties connect = new Properties();
        connect.put("bootstrap.servers", given.get("bootstrap"));
        Admin admin = Admin.create(connect);
        Map<TopicPartition, OffsetSpec> latest = new HashMap<>();
        for (var topic : admin.describeTopics(in).allTopicNames().get().values())
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
        StreamsBuilder builder = new StreamsBuilder();
        build(work, builder, in, given.get("out"));

        KafkaStreams streams = new KafkaStreams(builder.build(), config);
        streams.start();
        if (given.containsKey("stay")) Thread.sleep(Long.MAX_VALUE);
        var stable = new ListConsumerGroupOffsetsOptions().requireStable(true);
        for (long committed = 0; committed < total; Thread.sleep(5)) {
            if (firstNs.get() == 0) continue;
            committed = 0;
            for (var each : admin.listConsumerGroupOffsets(id, stable).partitionsToOffsetAndMetadata().get().entrySet())
                if (latest.containsKey(each.getKey()) && each.getValue() != null) committed += each.getValue().offset();
        }
        double seconds = (System.nanoTime() - firstNs.get()) / 1e9;
        String result = String.format("RESULT streams-%s rate=%.0f wall_s=%.2f cpu_us=%.2f", work, total / seconds, seconds,
            (cpuNs() - firstCpuNs) / 1e3 / total);
        for (String line : Files.readAllLines(Path.of("/proc/self/status"), StandardCharsets.UTF_8))
            if (line.startsWith("VmHWM")) result += " rss_mb=" + Long.parseLong(line.replaceAll("\\D+", "")) / 1024;
        System.out.println(result);
        streams.close(Duration.ofSeconds(20));
        admin.close();
    }
}
