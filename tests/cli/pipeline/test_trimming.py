"""`holdfast pipeline trim` shows which records of a source may go, and deletes them with `--execute`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from holdfast.cli.__main__ import main
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.application import create_topics
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.pipeline.bootstrap.bootstrap import BootstrapOptions, bootstrap
from holdfast.pipeline.landing.land import land
from holdfast.pipeline.replay import ReplayOptions
from tests.support.own_topics import ending
from tests.support.patience import DEADLINE_S

ORDERS = 7
SHOP = """
from holdfast import Processor

def fold(rows, event, at_ms):
    rows["all"] = (rows.get("all") or 0) + 1

totals = Processor(name="totals", source="orders", decode=bytes, fold=fold, row=int)
processors = [totals]
"""


@pytest.mark.long
def test_it_deletes_the_landed_and_folded_records_once_it_is_asked_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"shop_{ending()}"
    (tmp_path / f"{module}.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    totals: Processor[Any, Any] = __import__(module).totals
    with EmbeddedKafka() as kafka:
        settings = Settings(app=module, kafka=kafka.client_config(), data_dir=tmp_path / "data")
        create_topics(settings, [totals], partitions=1)
        producer = Producer(kafka.client_config())
        for _ in range(ORDERS):
            producer.produce("orders", b"{}")
        producer.flush(DEADLINE_S)
        bootstrap(totals, settings, BootstrapOptions(replay=ReplayOptions(engine="local")))
        land(settings, "orders", str(tmp_path / "lake"))

        def first() -> int:
            return Admin(settings).offsets([("orders", 0)])["orders", 0][0]

        def run(*words: str) -> int:
            with pytest.raises(SystemExit) as ended:
                main(["-A", module, "--set", f"app={module}", "--bootstrap", kafka.bootstrap, *words])
            return int(ended.value.code or 0)

        command = ("pipeline", "trim", "--lake", "lake")
        assert run(*command) == 0
        assert first() == 0
        assert "nothing was deleted" in capsys.readouterr().err
        assert run("-o", "json", *command, "--yes", "--group", "late") == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert (row["before"], row["held_by"]) == (0, "group late")
        assert run(*command, "--execute") == 0
        assert first() == ORDERS
        assert run(*command, "--topics", "other") == 2
        assert "topic other is no source" in capsys.readouterr().err
    sys.modules.pop(module, None)
