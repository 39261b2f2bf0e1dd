"""Rival: a plain confluent-kafka loop that re-keys records, one transaction a batch with its offsets: exactly
once, and nothing else.

python -P -m bench.rivals.transactional_loop BOOTSTRAP TOPIC BATCH
"""

from __future__ import annotations

import resource
import sys
import time

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.traffic import PARTITIONS, count, create, key_of


def main(bootstrap: str, topic: str, batch: int) -> None:
    records = count(bootstrap, topic)
    out = f"loop-{time.time_ns()}"
    create(bootstrap, out)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": out,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.queue.backoff.ms": 5,
        }
    )
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": out, "linger.ms": 5, "batch.num.messages": 10_000, "batch.size": 900_000,  # noqa: E501
         "queue.buffering.max.messages": 1_000_000, "partitioner": "murmur2_random"}
    )  # fmt: skip
    producer.init_transactions(30)
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    done, started_s, cpu_s = 0, 0.0, 0.0
    while done < records:
        messages = consumer.consume(min(batch, records - done), 5.0)
        if not started_s:
            started_s, cpu_s = time.perf_counter(), time.process_time()
        last: dict[int, int] = {}
        producer.begin_transaction()
        for message in messages:
            value = message.value()
            producer.produce(out, value, key_of(value))  # type: ignore[arg-type]
            last[message.partition()] = message.offset()  # type: ignore[index,assignment]
        producer.send_offsets_to_transaction(
            [TopicPartition(topic, number, offset + 1) for number, offset in last.items()],
            consumer.consumer_group_metadata(),
            30,
        )
        producer.commit_transaction(30)
        done += len(messages)
    wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    assert count(bootstrap, out) >= records
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"RESULT loop-{batch} rate={done / wall_s:.0f} wall_s={wall_s:.2f} cpu_us={cpu_s / done * 1e6:.2f}"
        f" rss_mb={rss}",
        flush=True,
    )
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
