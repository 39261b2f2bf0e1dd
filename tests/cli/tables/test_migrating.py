"""A table goes to its next version with its rows: by the commands, with workers before and after."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

from holdfast.dev.ports import free_ports
from holdfast.dev.waits import wait_until
from holdfast.embedded.kafka import EmbeddedKafka
from tests.support.patience import DEADLINE_S

pytestmark = pytest.mark.process

FIRST = """
from holdfast import Processor, by_key, create_app
def count(rows, word, at_ms):
    rows[word] = (rows.get(word) or 0) + 1
app = create_app([Processor(name="counts", source="words", decode=bytes.decode, fold=count, row=int, route=by_key)])
"""  # noqa: E501
SECOND = """
import msgspec
from holdfast import Processor, by_key, create_app
class Counted(msgspec.Struct, frozen=True):
    count: int
    letters: int
def count(rows, word, at_ms):
    before = rows.get(word)
    rows[word] = Counted((before.count if before else 0) + 1, len(word))
def counted(rows, word, count: int):
    rows[word] = Counted(count, len(word))
app = create_app([Processor(name="counts", source="words", decode=bytes.decode, fold=count, row=Counted, route=by_key,
                            version=2, migrate={1: counted})])
"""  # noqa: E501


class Shop:
    """An application by its commands, in a folder."""

    def __init__(self, kafka: EmbeddedKafka, folder: Path) -> None:
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "KAFKA_"))
        }
        self.folder, self._producer = folder, Producer(kafka.client_config())
        (self._port,) = free_ports(1)
        self._environment = clean | {
            "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap,
            "HOLDFAST_APP": folder.name,
            "HOLDFAST_WEB_PORT": str(self._port),
            "HOLDFAST_DATA_DIR": str(folder / "data"),
        }

    def write(self, *words: str) -> None:
        for word in words:
            self._producer.produce("words", word.encode(), word.encode(), 0)
        assert self._producer.flush(DEADLINE_S) == 0

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast.cli", "-A", "shop", *arguments],
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str]:
        with self.start(*arguments) as process:
            try:
                printed, _ = process.communicate(timeout=DEADLINE_S)
            finally:
                process.kill()
        return process.returncode, printed

    @contextmanager
    def worker(self) -> Iterator[None]:
        with self.start("worker", "-l", "error") as process:
            try:
                yield
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=DEADLINE_S)
                assert process.returncode == 0
            finally:
                process.kill()

    def rows(self) -> dict[str, str]:
        code, printed = self.run("tables", "scan", "counts")
        lines = [line.split(maxsplit=4) for line in printed.splitlines()[1:]]
        return {} if code else {line[0]: line[4] for line in lines}


def test_rows_continue_in_the_next_version(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    with EmbeddedKafka() as kafka:
        kafka.create_topic("words", config={"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"})
        shop = Shop(kafka, folder)
        (folder / "shop.py").write_text(FIRST)
        assert shop.run("topics", "create")[0] == 0
        shop.write("a", "bb", "a")
        with shop.worker():
            wait_until("version 1", lambda: shop.rows() == {"a": "2", "bb": "1"}, DEADLINE_S)
        shop.write("a")  # no worker of version 1 folds this

        (folder / "shop.py").write_text(SECOND)
        assert shop.run("topics", "create")[0] == 0
        code, refused = shop.run("worker", "-l", "error")
        assert code == 1
        assert "run `holdfast -A shop bootstrap counts --version 2 --from version` first" in refused
        code, done = shop.run("bootstrap", "counts")
        assert code == 0, done
        assert "begins with the rows of an earlier version" in done
        with shop.worker():
            wait_until("version 2", lambda: len(shop.rows()) == 2, DEADLINE_S)
            shop.write("bb")
            grown = {"a": '{"count":3,"letters":1}', "bb": '{"count":2,"letters":2}'}
            wait_until("what version 1 has not folded, and more", lambda: shop.rows() == grown, DEADLINE_S)
            code, verdict = shop.run("verify", "counts")
        assert code == 0, verdict
        assert "partition 0 from base: 2 rows and timers of version 1 behind offset 2" in verdict
