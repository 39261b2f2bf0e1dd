"""`holdfast reset` of an application with agents of Faust's: what they have counted is not counted again."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.cli.__main__ import main
from holdfast.clients.topics.application import create_topics
from holdfast.clients.topics.committed import CommittedOffsets
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.embedded.kafka import EmbeddedKafka

ORDERS = 5
AGENT = """
mails = app.topic("orders")
sent = app.Table("sent", default=int)

@app.agent(mails)
async def send(stream):
    async for order in stream.group_by(lambda order: order, name="all"):
        sent[order] += 1
"""
PROCESSORS = """
from holdfast import Processor, create_app

totals = Processor(name="totals", source="orders", decode=bytes, fold=lambda *_: None, row=int)
app = create_app([totals])
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the name of an empty module of a user's in the current folder."""
    name = f"shop_{uuid.uuid4().hex[:8]}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    sys.modules.pop(name, None)


@pytest.mark.parametrize(("declared", "stays"), [(PROCESSORS + AGENT, True), (PROCESSORS, False)])
def test_agents_go_on_at_their_offsets_since_what_they_keep_stays(
    module: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], declared: str, stays: bool
) -> None:
    (tmp_path / f"{module}.py").write_text(declared)
    with EmbeddedKafka() as kafka:
        settings = Settings(app=module, kafka=kafka.client_config(), data_dir=tmp_path / "data")
        totals: Processor[Any, Any] = Processor(
            name="totals", source="orders", decode=bytes, fold=lambda *_: None, row=int
        )
        create_topics(settings, [totals], partitions=1)
        producer = Producer(kafka.client_config())
        for _ in range(ORDERS):
            producer.produce("orders", b"{}")
        producer.flush(10)
        committed = CommittedOffsets(settings, module, timeout_s=10)
        committed.commit({("orders", 0): ORDERS})
        with pytest.raises(SystemExit) as ended:
            main(["-A", module, "--set", f"app={module}", "--bootstrap", kafka.bootstrap, "reset", "--yes"])
        assert ended.value.code == 0
        assert committed.committed([("orders", 0)]) == ({("orders", 0): ORDERS} if stays else {})
    told = capsys.readouterr()
    assert ("Faust's tables and repartition topics stay" in told.err) == stays
    assert ("delete  group" in told.out) != stays
