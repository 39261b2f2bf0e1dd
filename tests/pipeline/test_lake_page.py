"""docs/lake.md against the program: its way from a topic to a plot, its tables of columns and of metrics."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.__main__ import main
from holdfast.cli.pipeline.landing_status import LandingPage
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.pipeline.bronze.lake import ADDED_COLUMNS, COLUMNS
from tests.support.places import DOCS
from tests.test_docs import differs
from tests.test_tutorial import files, session

PAGE = (DOCS / "lake.md").read_text()
_HEADERS = "array<struct<key:string,value:binary>>"


@pytest.fixture
def followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder with the files of the page, in which commands reach an embedded Kafka, as with
    `holdfast dev up`.
    """
    for name, text in files(PAGE).items():
        (tmp_path / name).write_text(text)
    for name in [name for name in os.environ if name.startswith(("HOLDFAST_", "KAFKA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with EmbeddedKafka(seed=19) as kafka:
        monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka.bootstrap)
        yield tmp_path
    sys.modules.pop("sales", None)


def printed(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the output of a command of the page. It runs in this process, because a new one would load all
    of holdfast again.
    """
    program, *words = shlex.split(command)
    if program == "holdfast":
        with pytest.raises(SystemExit) as ended:
            main(words)
        told = capsys.readouterr()
        assert not ended.value.code, told.err
        return told.out
    assert program == "python"
    runpy.run_path(words[0], run_name="__main__")
    return capsys.readouterr().out


@pytest.mark.long
def test_the_page_leads_from_a_topic_to_a_plot(followed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = session(PAGE)
    assert [shlex.split(command)[-1] for command, _ in commands if "python" in command] == [
        "write_sales.py",
        "plot_sales.py",
    ]
    for command, wanted in commands:
        got = printed(command, capsys)
        assert not differs(wanted, got), f"$ {command}\n--- the page says\n{wanted}\n--- it printed\n{got}"
    plot = (followed / "sales.html").read_text()
    assert plot.count('<path class="line') == 3
    assert all(f"<title>{customer}</title>" in plot for customer in ("ada", "bo", "cleo"))


def test_the_page_has_every_column_with_its_type_and_version() -> None:
    found = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([12]) \|", PAGE, re.MULTILINE)
    told = {name: (kind.strip(), int(since)) for name, kind, since in found}
    told["headers"] = (_HEADERS, told["headers"][1])
    assert told == {name: (kind, 2 if name in ADDED_COLUMNS else 1) for name, kind in COLUMNS.items()}
    assert [*told] == [*COLUMNS]


def test_the_page_has_every_metric() -> None:
    told = dict(re.findall(r"^\| `(holdfast_\w+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    families = {
        each.name + ("_total" if each.type == "counter" else ""): each for each in LandingPage({}).collect()
    }
    labels = {name: ", ".join(getattr(each, "_labelnames")) for name, each in families.items()}  # noqa: B009
    assert {name: text.strip() for name, text in told.items()} == labels
