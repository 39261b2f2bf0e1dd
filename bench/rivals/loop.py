"""Rival: a plain confluent-kafka loop without Faust, transactions, fencing, quarantine or restore; as fast as
such a loop gets.

python -P -m bench.rivals.loop BOOTSTRAP TOPIC BATCH FOLDER
"""

from __future__ import annotations

import resource
import struct
import sys
import time

import rocksdict
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench.traffic import PARTITIONS, count, create

ROW = struct.Struct(">qqq")


def main(bootstrap: str, topic: str, batch: int, folder: str) -> None:
    records = count(bootstrap, topic)
    changelog = f"loop-{time.time_ns()}"
    create(bootstrap, changelog)
    stores = [
        rocksdict.Rdict(f"{folder}/{number}", rocksdict.Options(raw_mode=True))
        for number in range(PARTITIONS)
    ]
    cache: list[dict[bytes, tuple[int, int, int, bytes]]] = [{} for _ in stores]
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": changelog,
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 5,
        }
    )
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "batch.num.messages": 10_000, "batch.size": 900_000,  # noqa: E501
         "queue.buffering.max.messages": 1_000_000}
    )  # fmt: skip
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error:
            failed.append(error)

    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    done, rows, started_s, cpu_s = 0, 0, 0.0, 0.0
    while done < records:
        messages = consumer.consume(min(batch, records - done), 5.0)
        if not started_s:
            started_s, cpu_s = time.perf_counter(), time.process_time()
        dirty: list[dict[bytes, tuple[int, int, int, bytes]]] = [{} for _ in stores]
        last: dict[int, int] = {}
        for message in messages:
            number = message.partition()
            kind, _, time_s, instance, client, rest = message.value().split(b"/", 5)  # type: ignore[union-attr]
            key, _, offset = rest.rpartition(b"/")
            if kind != b"Heartbeat" or key.count(b"/") != 2:
                raise ValueError(message.value())
            mine = dirty[number]  # type: ignore[index]
            old = mine.get(key) or cache[number].get(key)  # type: ignore[index]
            mine[key] = (int(time_s), int(offset), (old[2] if old else 0) + 1, instance + b"/" + client)
            last[number] = message.offset()  # type: ignore[index,assignment]
        writes = []
        for number, offset_last in last.items():
            write = rocksdict.WriteBatch(raw_mode=True)
            for key, row in dirty[number].items():
                value = ROW.pack(row[0], row[1], row[2]) + row[3]
                producer.produce(changelog, value, key, number)
                write.put(key, value)
            producer.produce(changelog, b"%d" % offset_last, b"\x00applied", number, on_delivery=delivered)
            write.put(b"\x00applied", b"%d" % offset_last)
            rows += len(dirty[number]) + 1
            writes.append((number, write))
        producer.flush()
        assert not failed, failed
        for number, write in writes:
            stores[number].write(write)
            cache[number].update(dirty[number])
        consumer.commit(
            offsets=[TopicPartition(topic, number, offset + 1) for number, offset in last.items()],
            asynchronous=True,
        )
        done += len(messages)
    wall_s, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    total = sum(
        ROW.unpack_from(value)[2] for store in stores for key, value in store.items() if key != b"\x00applied"
    )
    assert total == records, (total, records)
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(
        f"RESULT loop-{batch} rate={done / wall_s:.0f} wall_s={wall_s:.2f} cpu_us={cpu_s / done * 1e6:.2f}"
        f" changelog={rows} rss_mb={rss}",
        flush=True,
    )
    consumer.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
