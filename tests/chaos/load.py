"""Writes a known, bounded load to a topic: `python -m tests.chaos.load BOOTSTRAP TOPIC PARTITIONS RATE LIMIT
SEED`.

Ends at LIMIT records or when its standard input closes, and prints how many the broker acknowledged. The
producer is idempotent, so that each is in the log once. The same seed writes the same records.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from itertools import islice

from confluent_kafka import KafkaError, Message, Producer

from tests.support.patience import DEADLINE_S

KEYS = 200
BURST_S = 0.05


def records(seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield (key, value) for ever: mostly counts, some timers and deletions, now and then a record that
    must be refused.
    """
    chance = random.Random(seed)
    at = 0
    while True:
        at += 1
        number = chance.randrange(KEYS)
        roll = chance.random()
        if roll < 0.9:
            yield f"k{number}", b"add k%d %d" % (number, at)
        elif roll < 0.95:
            yield f"w{number % 40}", b"watch w%d %d" % (number % 40, at)
        elif roll < 0.97:
            yield f"d{number % 20}", b"add d%d %d" % (number % 20, at)
        elif roll < 0.99:
            yield f"d{number % 20}", b"delete d%d %d" % (number % 20, at)
        elif roll < 0.999:
            yield f"w{number % 40}", b"watch w%d %d" % (number % 40, at)
        elif roll < 0.9995:
            yield f"k{number}", b"raise k%d %d" % (number, at)
        else:
            yield f"k{number}", b"\xff undecodable %d" % at


def stop_at_end_of_input(stopped: threading.Event) -> None:
    sys.stdin.read()
    stopped.set()


def main() -> None:
    bootstrap, topic, partitions, rate, limit, seed = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:7])
    stopped = threading.Event()
    threading.Thread(target=stop_at_end_of_input, args=(stopped,), daemon=True).start()
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 50,
            "message.timeout.ms": 300_000,
            "reconnect.backoff.max.ms": 500,
        }
    )
    acked = 0

    def delivered(error: KafkaError | None, message: Message) -> None:
        nonlocal acked
        if error is not None:
            sys.exit(f"load lost a record: {error.str()}")
        acked += 1

    began_s = time.monotonic()
    for sent, (key, value) in enumerate(islice(records(seed), limit)):
        if stopped.is_set():
            break
        while sent >= (time.monotonic() - began_s) * rate and not stopped.is_set():
            producer.poll(BURST_S)
        # A key has one partition, whatever the partitioner of a client may be.
        while True:
            try:
                producer.produce(topic, value, key, int(key[1:]) % partitions, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.5)
    left = producer.flush(DEADLINE_S)
    if left:
        sys.exit(f"{left} records not acknowledged")
    print(acked)


if __name__ == "__main__":
    main()
