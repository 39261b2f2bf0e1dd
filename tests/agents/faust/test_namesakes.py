"""Two applications of one name on one broker are one group: each worker says so, with the cure."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Processor, create_app
from holdfast.agents.app import App
from holdfast.config import Settings
from tests.agents.faust.test_assignor import shared_out
from tests.agents.versioned import versioned


def worker(folder: Path, number: int, table: str, source: str, version: int = 1) -> App:
    def fold(rows: object, value: bytes, at_ms: int) -> None: ...

    settings = Settings(app="shop", web_port=7000 + number, data_dir=folder / str(number))
    processor = Processor(name=table, source=source, decode=bytes, fold=fold, row=int, version=version)
    return create_app([processor], settings=settings)


def said(workers: list[App], caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    for _ in range(2):
        shared_out(workers[0], workers)
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


CURE = "two applications are named shop on this broker"


def test_other_tables_are_another_application(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    workers = [worker(tmp_path, 0, "totals", "orders"), worker(tmp_path, 1, "visits", "pages")]
    lines = said(workers, caplog)
    assert len(lines) == 2, "each says it once"
    for own, other, port in (("totals", "visits", 7001), ("visits", "totals", 7000)):
        (line,) = [
            each for each in lines if f":{port} has the tables {other}, and this one has {own}:" in each
        ]
        assert CURE in line
        assert "give each a name of its own (setting app" in line


def test_a_table_of_other_sources_is_another_application(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    workers = [
        worker(tmp_path, at, "totals", source) for at, source in enumerate(("orders", "pages", "pages"))
    ]
    lines = said(workers, caplog)
    assert len(lines) == 3, "each says it once, whoever leads"
    assert {each.split(":")[0] for each in lines} == {"the workers of shop fold totals from different topics"}
    assert all(CURE in each and "raise its version" in each for each in lines)


def test_workers_of_one_application_are_not_distinguished(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    both = create_app(
        [versioned("shop", 1), *worker(tmp_path, 9, "visits", "pages").processors.values()],
        settings=Settings(app="shop", web_port=7003, data_dir=tmp_path / "3"),
    )
    versions = [worker(tmp_path, at, "totals", "orders", version=1 + at) for at in range(2)]
    assert said([worker(tmp_path, at, "totals", "orders") for at in range(3)], caplog) == []
    assert said(versions, caplog) == [], "versions of one table"
    one = create_app(
        [versioned("shop", 1)], settings=Settings(app="shop", web_port=7004, data_dir=tmp_path / "4")
    )
    assert said([both, one], caplog) == [], "one of them has a table more"
