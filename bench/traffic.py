"""Traffic for the benchmarks: heartbeats of claims in rounds, each round every claim once, in random
order.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from holdfast.core.claims.frames import Heartbeat, encode
from holdfast.core.producers.stamps import Stamp, stamp_headers

PARTITIONS = 4
_T0_S = 1_476_147_600


def heartbeats(records: int, claims: int, seed: int = 7) -> Iterator[tuple[int, bytes]]:
    """Yield (partition, value): about 77 bytes each, 16 partitions a topic, 50 groups, 200 clients."""
    rng = random.Random(seed)
    owners = [(f"{rng.getrandbits(32):08x}", f"worker-{rng.randrange(200)}") for _ in range(claims)]
    order, produced, turn = list(range(claims)), 0, 0
    while produced < records:
        rng.shuffle(order)
        turn += 1
        for claim in order[: records - produced]:
            number, part = divmod(claim, 16)
            instance, client = owners[claim]
            frame = Heartbeat(
                time_s=_T0_S + turn * 10,
                instance_id=instance,
                client_id=client,
                group_id=f"group-{number % 50}",
                topic=f"events.topic-{number:04d}",
                partition=part,
                current_offset=turn * 1000 + claim,
            )
            yield number % PARTITIONS, encode(frame)
        produced += min(len(order), records - produced)


def key_of(value: bytes) -> bytes:
    """Return which claim a heartbeat is of: what the re-keying benchmarks take for a key.

    >>> key_of(b"Heartbeat/1/1476147600/instance/client/group/topic/3/100")
    b'group/topic/3'
    """
    return value.split(b"/", 5)[5].rpartition(b"/")[0]


def create(bootstrap: str, topic: str, partitions: int = PARTITIONS, cleanup: str = "delete") -> None:
    """Make a topic with LogAppendTime and wait for it."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = {"message.timestamp.type": "LogAppendTime", "cleanup.policy": cleanup}
    for future in admin.create_topics([NewTopic(topic, partitions, 1, config=config)]).values():
        future.result(30)


def load(bootstrap: str, topic: str, records: int, claims: int) -> None:
    """Make *topic* and fill it with heartbeats; does nothing when it is there already."""
    if topic in AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30).topics:
        return
    create(bootstrap, topic)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "batch.num.messages": 10_000,
        }
    )
    for partition, value in heartbeats(records, claims):
        while True:
            try:
                producer.produce(topic, value, partition=partition)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(120) == 0


def load_stamped(bootstrap: str, topic: str, records: int, producers: int) -> None:
    """Make *topic* and fill it with the same heartbeats, each with the stamp of one of *producers*, all in
    order.
    """
    create(bootstrap, topic)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": 1_000_000,
            "batch.num.messages": 10_000,
        }
    )
    for at, (_, value) in enumerate(heartbeats(records, producers)):
        turn, number = divmod(at, producers)
        # each turn is a producer's next record in its one partition, in an order of its own
        name = (number * 7_919 + turn) % producers
        headers: list[tuple[str, str | bytes | None]] = list(
            stamp_headers(Stamp(f"producer-{name:06d}", 3, turn))
        )
        while True:
            try:
                producer.produce(topic, value, partition=name % PARTITIONS, headers=headers)
                break
            except BufferError:
                producer.poll(0.05)
    assert producer.flush(120) == 0


def count(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> int:
    """Return how many offsets *topic* holds."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench-count"})
    try:
        ends = [
            consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30)
            for number in range(partitions)
        ]
    finally:
        consumer.close()
    return sum(high - low for low, high in ends)
