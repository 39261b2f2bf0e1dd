"""A hostile producer: `python -m tests.chaos.hostile BOOTSTRAP APP SOURCE OUT PARTITIONS SEED LIMIT`, which
runs while a test kills and replaces workers.

It writes LIMIT rounds, or until its standard input closes, and prints how many records it wrote. It writes no
valid event to the source, and its records in holdfast's own topics bear the header HOSTILE, so that a proof
can distinguish them.
"""

from __future__ import annotations

import random
import sys
import threading
import time
import uuid

from confluent_kafka import KafkaException, Producer

from holdfast.core.engine.positions import Position, encode_position
from holdfast.core.engine.state.codec import APPLIED, row_key
from tests.chaos.load import stop_at_end_of_input
from tests.support.bombs import CODECS, MIB, one_value, send_batches
from tests.support.patience import DEADLINE_S

HOSTILE = "hostile"
PAUSE_S = 0.05
OPEN_S = 4.0
BOMB_BYTES = 48 * MIB
_DEEP = b"[" * 50_000
_LAST_MS = (1 << 63) - 1

GARBAGE: tuple[bytes | None, ...] = (
    None,
    b"",
    b"\xff\xfe\x00",
    b"add k1",
    b"add \xff\xff 1",
    b"raise k1 7",
    b"add k1 " + b"9" * 5_000,
    b"add k1 NaN",
    b"add k1 1e999",
    b"nothing k1 1",
    _DEEP,
    b'{"a":' * 20_000,
    b"\x91" * 50_000,
    b"\x00" * 900_000,
    b"grow k1 1000001",
    b"shout k1 1000001",
)
KEYS: tuple[bytes | None, ...] = (
    None,
    b"",
    b"\xff\xfe",
    b"\x00",
    b"k" * 30_000,
    "\N{GRINNING FACE}".encode(),
)
TIMES_MS = (0, 1, 4_102_444_800_000, _LAST_MS)


def worker_records(chance: random.Random) -> list[tuple[bytes | None, bytes | None]]:
    """Return records of the workers topic for workers that do not exist."""
    port = chance.randrange(1, 65_536)
    url = f"http://127.0.0.1:{port}"
    table = '{"version":1,"partitions":%s,"active":[0,1,2,3],"standby":[]}'
    record = (
        '{"url":"%s","generation":%s,"started_ms":1,"at_ms":9999999999999,"tables":{"counts":%s,"tally":%s}}'
    )
    return [
        (url.encode(), (record % (url, 1_000_000_000, table % 4, table % 4)).encode()),
        (url.encode(), (record % (url, 5, table % 10**9, table % -1)).encode()),
        (url.encode(), _DEEP),
        (b"\xff\xfe", b"\xff\xfe"),
        (b"http://[::1", (record % ("http://[::1", 1, table % 4, table % 4)).encode()),
        (b"", None),
        (None, b"null"),
        (url.encode(), None),
    ]


class Harm:
    """One producer, and one round of everything at a time."""

    def __init__(self, bootstrap: str, app: str, source: str, out: str, partitions: int, seed: int) -> None:
        self._config = {"bootstrap.servers": bootstrap, "message.max.bytes": 8 * MIB, "linger.ms": 2}
        self._app, self._source, self._out, self._partitions, self._chance = (
            app,
            source,
            out,
            partitions,
            random.Random(seed),
        )
        self._producers = [
            Producer({**self._config, "compression.type": codec})
            for codec in ("none", "gzip", "snappy", "lz4", "zstd")
        ]
        self._open: tuple[Producer, float] | None = None
        self.written = 0

    def round(self, number: int) -> None:
        """Write some of everything."""
        self._garbage()
        self._forge()
        self._abort()
        if self._open is None:
            self._leave_open()
        elif time.monotonic() > self._open[1]:
            self._open = (
                None  # its producer is forgotten: the coordinator ends the transaction by its timeout
            )
        if number % 10 == 0:
            codec = CODECS[number // 10 % len(CODECS)]
            batch = one_value(codec, BOMB_BYTES)
            if len(batch) < MIB:  # snappy makes it larger than the topic accepts
                send_batches(
                    {"bootstrap.servers": self._config["bootstrap.servers"]},
                    [(self._source, self._chance.randrange(self._partitions), batch)],
                )
                self.written += 1
        for producer in self._producers:
            producer.flush(DEADLINE_S)

    def _write(
        self,
        producer: Producer,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        partition: int,
        marked: bool = True,
    ) -> None:
        headers: list[tuple[str, str | bytes | None]] = [(HOSTILE, b"1")] if marked else []
        if self._chance.random() < 0.2:
            headers = [
                *headers,
                *(("x" * 100, b"\xff" * 100) for _ in range(self._chance.choice([1, 1_000]))),
            ]
        try:
            producer.produce(
                topic, value, key, partition, timestamp=self._chance.choice(TIMES_MS), headers=headers
            )
            self.written += 1
        except KafkaException:
            pass  # more than the client itself sends

    def _garbage(self) -> None:
        for value in self._chance.sample(GARBAGE, 4):
            place = self._chance.randrange(self._partitions)
            self._write(
                self._chance.choice(self._producers), self._source, self._chance.choice(KEYS), value, place
            )

    def _forge(self) -> None:
        """Send the announcements of a worker to all listeners."""
        plain = self._producers[0]
        for key, value in self._chance.sample(worker_records(self._chance), 3):
            self._write(plain, f"{self._app}-workers", key, value, 0)
        self._write(
            plain, f"{self._app}-quarantine", self._chance.choice(KEYS), self._chance.choice(GARBAGE), 0
        )

    def _transaction(self, timeout_s: float) -> Producer:
        producer = Producer(
            {
                **self._config,
                "transactional.id": uuid.uuid4().hex,
                "transaction.timeout.ms": int(timeout_s * 1000),
            }
        )
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        for place in range(self._partitions):
            producer.produce(self._source, b"add k1 1000000", b"k1", place)
            producer.produce(
                f"{self._app}-counts.v1-changelog",
                encode_position(Position((1 << 40,), 1, 1)),
                APPLIED,
                place,
            )
            producer.produce(f"{self._app}-counts.v1-changelog", b"never", row_key("k1"), place)
        producer.flush(DEADLINE_S)
        return producer

    def _abort(self) -> None:
        """Write records that would be counted, rows and positions too, and abort."""
        self._transaction(DEADLINE_S).abort_transaction(DEADLINE_S)

    def _leave_open(self) -> None:
        self._open = self._transaction(OPEN_S), time.monotonic() + 3 * OPEN_S


def main() -> None:
    bootstrap, app, source, out = sys.argv[1:5]
    partitions, seed, limit = map(int, sys.argv[5:8])
    stopped = threading.Event()
    threading.Thread(target=stop_at_end_of_input, args=(stopped,), daemon=True).start()
    harm = Harm(bootstrap, app, source, out, partitions, seed)
    for number in range(limit):
        harm.round(number)
        if stopped.wait(PAUSE_S):
            break
    print(harm.written)


if __name__ == "__main__":
    main()
