"""`holdfast verify` without a name compares every processor; a step, which has no rows, is no failure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.dev.waits import wait_until
from holdfast.embedded.kafka import EmbeddedKafka
from tests.cli.tables.test_migrating import Shop
from tests.support.patience import DEADLINE_S

pytestmark = pytest.mark.process

CHAIN = """
from holdfast import Json, Source, Text, create_app
from holdfast.streams import Rekey, count
words = Source("words", Text(), key=Text())
initials = Rekey(name="initials", source=words, by=lambda word: word[0])
app = create_app([initials, count(name="counts", source=initials, key=lambda word: word[0])])
"""


def test_every_processor_is_verified_and_a_step_has_nothing_to_compare(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "shop.py").write_text(CHAIN)
    with EmbeddedKafka() as kafka:
        kafka.create_topic("words", config={"message.timestamp.type": "LogAppendTime", "retention.ms": "-1"})
        shop = Shop(kafka, folder)
        assert shop.run("topics", "create")[0] == 0
        shop.write("apple", "bee", "ant")
        with shop.worker():
            wait_until("all counted", lambda: shop.rows() == {"a": "2", "b": "1"}, DEADLINE_S)
            code, said = shop.run("verify", "initials", "--store")
            assert (code, "initials: a step keeps no rows to compare" in said) == (0, True), said
            code, said = shop.run("verify", "--store")
            assert code == 0, said
            assert "counts: replay, changelog and store are equal" in said
        code, said = shop.run("verify")
        assert code == 0, said
        assert "initials: a step keeps no rows to compare" in said
        assert "counts: equal after 3 records" in said
        code, said = shop.run("verify", "--emits")
        assert (code, "counts: it emits nothing" in said) == (0, True), said
        code, said = shop.run("-o", "json", "verify")
        assert code == 0, said
        found = json.loads(said)
        assert [(each["processor"], each["equal"]) for each in found] == [
            ("initials", True),
            ("counts", True),
        ]
