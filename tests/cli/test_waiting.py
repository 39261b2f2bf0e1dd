"""A command whose folds wait for something says so: it is not to look as if it hung."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer

from holdfast.embedded.kafka import EmbeddedKafka
from tests.cli.test_command_line import holdfast
from tests.support.patience import DEADLINE_S

pytestmark = pytest.mark.process

MODULE = """
from holdfast import Processor
from holdfast.errors import Later

def fold(rows, order, at_ms):
    raise Later("nobody answers", needs="rates")

processors = [Processor(name="totals", source="orders", decode=bytes, fold=fold, row=int)]
"""


def test_a_replay_that_waits_says_for_what(tmp_path: Path) -> None:
    (tmp_path / "later_shop.py").write_text(MODULE)
    with EmbeddedKafka() as kafka:
        kafka.create_topic("orders", partitions=1)
        producer = Producer(kafka.client_config())
        producer.produce("orders", b"{}")
        producer.flush(DEADLINE_S)
        limit = ("--set", "later_timeout_s=1")
        done = holdfast(
            "-A", "later_shop", "--bootstrap", kafka.bootstrap, *limit, "replay", "totals", folder=tmp_path
        )
    assert done.returncode == 1
    first, *_, last = done.stderr.splitlines()
    assert "totals.v1 partition 0: offset 0 waits for rates: nobody answers" in first
    assert "s for rates (nobody answers), longer than later_timeout_s" in last
