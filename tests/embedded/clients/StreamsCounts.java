// Counts the records of each key, exactly once: java -cp JARS StreamsCounts.java BOOTSTRAP FOLDER TOTAL
//
// Reads the topic "words", of TOTAL records in all partitions, and writes each count to "counts". Prints "seen N" after each thousand
// records that this process has seen, and at the end, once the whole input is committed, a line for each key with its count. Whoever
// starts it may kill it at any time and start it again with the same folder.

import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;

public class StreamsCounts {
    static final String ID = "counting";
    static final AtomicLong seen = new AtomicLong();

    static void see(String key) {
        long count = seen.incrementAndGet();
        if (count % 1000 == 0) System.out.println("seen " + count);
        if (count % 20 == 0) pause(2);
    }

    static void pause(long ms) {
        try {
            Thread.sleep(ms);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    public static void main(String[] args) throws Exception {
        Properties config = new Properties();
        config.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
        config.put(StreamsConfig.APPLICATION_ID_CONFIG, ID);
        config.put(StreamsConfig.STATE_DIR_CONFIG, args[1]);
        config.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        config.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        config.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
        config.put(StreamsConfig.consumerPrefix("session.timeout.ms"), 45_000);
        config.put(StreamsConfig.consumerPrefix("auto.offset.reset"), "earliest");
        long total = Long.parseLong(args[2]);

        StreamsBuilder builder = new StreamsBuilder();
        builder.stream("words", Consumed.with(Serdes.String(), Serdes.String()))
            .peek((key, value) -> see(key))
            .groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
            .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("store").withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream()
            .to("counts", Produced.with(Serdes.String(), Serdes.Long()));
        KafkaStreams streams = new KafkaStreams(builder.build(), config);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
        });
        streams.start();
        var stable = new ListConsumerGroupOffsetsOptions().requireStable(true);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args[0]))) {
            for (long committed = 0; committed < total; pause(100)) {
                if (streams.state() == KafkaStreams.State.ERROR) System.exit(1);
                committed = 0;
                for (var each : admin.listConsumerGroupOffsets(ID, stable).partitionsToOffsetAndMetadata().get().entrySet())
                    if (each.getKey().topic().equals("words") && each.getValue() != null) committed += each.getValue().offset();
            }
        }
        try (var rows = streams.store(StoreQueryParameters.fromNameAndType("store", QueryableStoreTypes.<String, Long>keyValueStore())).all()) {
            while (rows.hasNext()) {
                var row = rows.next();
                System.out.println(row.key + " " + row.value);
            }
        }
        streams.close(Duration.ofSeconds(60));
    }
}
