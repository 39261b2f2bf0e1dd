"""A harvester that cannot read its outbox says so before it takes part in the election: as the leader of a
shard it would keep others from publishing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from holdfast.config import Settings
from holdfast.core.outbox.election import Leadership
from holdfast.errors import ConfigError, HoldfastError, OutboxDatabaseError, OutboxSchemaError
from holdfast.outbox.harvest.harvester import Harvester, open_rows
from holdfast.outbox.harvest.table.readable import refuse_unreadable
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.settings import HarvestSettings
from tests.outbox.databases import DATABASES, FreshOutbox, url_of
from tests.support.parts import part
from tests.support.patience import DEADLINE_S


@pytest.fixture(params=DATABASES)
@part("database")
def outbox(request: pytest.FixtureRequest, tmp_path: Path) -> FreshOutbox:
    return FreshOutbox.make(url_of(request.param, request, tmp_path))


def settings(outbox: FreshOutbox, **more: Any) -> HarvestSettings:
    """Return settings on which only the outbox can be asked: there is no broker."""
    given: dict[str, Any] = {"database": outbox.url, "table": outbox.table, "layout": outbox.layout.name}
    kafka = Settings(app="nobody-there", kafka={"bootstrap.servers": "127.0.0.1:1"})
    return HarvestSettings(kafka=kafka, **{**given, **more})


@pytest.fixture
def unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a harvester continues to Kafka."""

    def goes_on(*_: object) -> None:
        raise AssertionError("it goes on to the election")

    monkeypatch.setattr("holdfast.outbox.harvest.harvester.ensure_topics", goes_on)


@pytest.mark.usefixtures("unheard")
def test_tables_that_are_missing_or_of_another_layout_are_reported_with_the_cure(outbox: FreshOutbox) -> None:
    with pytest.raises(OutboxSchemaError, match=r"nothing_here is missing.*outbox init --layout holdfast"):
        Harvester(settings(outbox, table="nothing_here")).start()
    with pytest.raises(OutboxSchemaError, match=r"no column kafka_topic.*Or name the layout"):
        Harvester(settings(outbox, layout="goharvest")).start()
    for ending in ("quarantine", "lease", "attempts"):
        with outbox.engine().begin() as connection:
            connection.execute(text(f"DROP TABLE {outbox.table}_{ending}"))
        with pytest.raises(OutboxSchemaError, match=f"{outbox.table}_{ending} is missing"):
            Harvester(settings(outbox)).start()


@pytest.mark.usefixtures("unheard")
def test_a_file_or_a_driver_that_is_missing_is_reported(tmp_path: Path) -> None:
    def harvester(url: str) -> Harvester:
        return Harvester(HarvestSettings(database=url))

    with pytest.raises(OutboxDatabaseError, match="there is no such file; check the URL"):
        harvester(f"sqlite:///{tmp_path / 'mistyped.db'}").start()
    assert not (tmp_path / "mistyped.db").exists()
    with pytest.raises(ConfigError, match="is not installed"):
        harvester("sqlite+nothing:///x.db").start()


@pytest.mark.parametrize("made", [True, False])
@pytest.mark.parametrize("led", [True, False])
def test_a_progress_topic_that_leaders_before_must_have_had_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    made: bool,
    led: bool,
) -> None:
    """Without it epochs begin again, and readers take what comes for a zombie's."""
    outbox = FreshOutbox.make(f"sqlite:///{tmp_path / 'service.db'}")
    harvester = Harvester(settings(outbox, name="shop", shards=2))
    if led:
        with outbox.rows() as rows:
            rows.epoch(1, "anna")

    def ends(_: HarvestSettings) -> list[str]:
        harvester.stop()
        return ["shop.neli", "shop.progress"] if made else ["shop.neli"]

    monkeypatch.setattr("holdfast.outbox.harvest.harvester.ensure_topics", ends)
    harvester.start()
    told = [each for each in caplog.messages if "shop.progress was missing" in each]
    assert len(told) == (made and led)
    assert all("anna led shard 1 before" in each for each in told)
    assert all("Nothing is wrong where the name" in each for each in told), "who took the cure hears it too"


def test_an_outbox_that_can_be_read_is_not_refused(
    outbox: FreshOutbox, caplog: pytest.LogCaptureFixture
) -> None:
    with outbox.rows() as rows:
        refuse_unreadable(rows, "shop")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_database_that_does_not_answer_is_waited_for_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    with OutboxRows("postgresql://shop@127.0.0.1:1/shop") as rows:
        refuse_unreadable(rows, "shop")
    assert "outbox shop: cannot connect to" in caplog.text
    assert "takes part in the election all the same" in caplog.text


def test_a_column_of_another_type_is_reported_and_its_rows_are_tried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = FreshOutbox.make(f"sqlite:///{tmp_path / 'shop.db'}")
    with outbox.engine().begin() as connection:
        connection.execute(text(f"ALTER TABLE {outbox.table} DROP COLUMN key"))
        connection.execute(text(f"ALTER TABLE {outbox.table} ADD COLUMN key TEXT"))
    with outbox.rows() as rows:
        refuse_unreadable(rows, "shop")
    assert f"column {outbox.table}.key is TEXT; this layout takes BLOB" in caplog.text


def test_a_term_that_cannot_begin_ends_the_harvester_with_the_cause_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = FreshOutbox.make(f"sqlite:///{tmp_path / 'shop.db'}")

    def gone(settings: HarvestSettings) -> OutboxRows:
        raise ConfigError("the driver went away")

    for make_rows, error in ((gone, "the driver went away"), (lambda _: open_rows(None), "AttributeError")):  # type: ignore[arg-type]
        harvester = Harvester(settings(outbox), make_rows=make_rows)
        harvester.acquired(Leadership(role=0, epoch=0, leader_id="me"))
        with pytest.raises(HoldfastError, match=error):
            harvester.wait(DEADLINE_S)
        assert error in harvester.stats[0].last_error
        assert not harvester.stats[0].leading or harvester._leaders == {}
        assert error in caplog.text
