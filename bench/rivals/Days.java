// Rival: windows behind a re-key, and an interval join, by Flink: one process, state on the heap, exactly once.
//
//     javac -cp JARS -d D bench/rivals/Days.java && java -cp D:JARS Days work=rekeyed|near bootstrap=HOST:PORT in=T[,T] out=T id=APP
//
// Event time is the number behind "at": in a record's JSON. Watermarks are of each Kafka partition, bounded by grace. It runs until
// it is killed.

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.serialization.SimpleStringSchema;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.base.DeliveryGuarantee;
import org.apache.flink.connector.kafka.sink.KafkaRecordSerializationSchema;
import org.apache.flink.connector.kafka.sink.KafkaSink;
import org.apache.flink.connector.kafka.source.KafkaSource;
import org.apache.flink.connector.kafka.source.enumerator.initializer.OffsetsInitializer;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.co.ProcessJoinFunction;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;

public class Days {
    static String field(String json, String name) {
        int from = json.indexOf("\"" + name + "\":") + name.length() + 3, to = from;
        while (",}".indexOf(json.charAt(to)) < 0) to++;
        return json.charAt(from) == '"' ? json.substring(from + 1, to - 1) : json.substring(from, to);
    }

    static DataStream<String> read(StreamExecutionEnvironment env, Map<String, String> given, String topic, Duration grace) {
        var source = KafkaSource.<String>builder().setBootstrapServers(given.get("bootstrap")).setTopics(topic).setGroupId(given.get("id"))
            .setStartingOffsets(OffsetsInitializer.earliest()).setValueOnlyDeserializer(new SimpleStringSchema()).build();
        var times = WatermarkStrategy.<String>forBoundedOutOfOrderness(grace)
            .withTimestampAssigner((value, old) -> Long.parseLong(field(value, "at")));
        return env.fromSource(source, times, topic);
    }

    static class Count implements AggregateFunction<String, Long, Long> {
        public Long createAccumulator() { return 0L; }
        public Long add(String value, Long count) { return count + 1; }
        public Long getResult(Long count) { return count; }
        public Long merge(Long one, Long other) { return one + other; }
    }

    static class Told extends ProcessWindowFunction<Long, String, String, TimeWindow> {
        @Override
        public void process(String key, Context context, Iterable<Long> counts, Collector<String> out) {
            out.collect("{\"key\":\"" + key + "\",\"start_ms\":" + context.window().getStart() + ",\"end_ms\":" + context.window().getEnd()
                + ",\"value\":" + counts.iterator().next() + "}");
        }
    }

    static class Pair extends ProcessJoinFunction<String, String, String> {
        @Override
        public void processElement(String left, String right, Context context, Collector<String> out) {
            out.collect("[" + left + "," + right + "]");
        }
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> given = new HashMap<>();
        for (String arg : args) given.put(arg.substring(0, arg.indexOf('=')), arg.substring(arg.indexOf('=') + 1));
        String[] in = given.get("in").split(",");
        var env = StreamExecutionEnvironment.createLocalEnvironment(1, new Configuration());
        env.enableCheckpointing(1_000);
        DataStream<String> results;
        if (given.get("work").equals("near")) {
            var left = read(env, given, in[0], Duration.ofMinutes(5)).keyBy(value -> field(value, "page"));
            var right = read(env, given, in[1], Duration.ofMinutes(5)).keyBy(value -> field(value, "page"));
            results = left.intervalJoin(right).between(Duration.ofSeconds(-10), Duration.ofSeconds(10)).process(new Pair());
        } else {
            results = read(env, given, in[0], Duration.ZERO).keyBy(value -> field(value, "page"))
                .window(TumblingEventTimeWindows.of(Duration.ofHours(1))).aggregate(new Count(), new Told());
        }
        results.sinkTo(KafkaSink.<String>builder().setBootstrapServers(given.get("bootstrap")).setDeliveryGuarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .setTransactionalIdPrefix(given.get("id")).setProperty("transaction.timeout.ms", "600000")
            .setRecordSerializer(KafkaRecordSerializationSchema.builder().setTopic(given.get("out"))
                .setValueSerializationSchema(new SimpleStringSchema()).build()).build());
        env.execute(given.get("id"));
    }
}
