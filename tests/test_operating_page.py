"""docs/operating.md against the program: its table of settings, its table of metrics, and the commands it
names.

With REWRITE_PAGES=1 the tables are written again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from holdfast.agents.web.server import LIMIT_IN_FLIGHT
from holdfast.cli.__main__ import COMMANDS
from holdfast.config import Settings
from holdfast.core.engine.fold.folding import LIMIT_BYTES
from holdfast.core.engine.query_wire import LIMIT_KEYS, LIMIT_PAGE_ROWS, LIMIT_REPLY_BYTES, LIMIT_WAIT_MS
from holdfast.core.engine.state.rows import LIMIT_KEY_BYTES
from holdfast.dev.fixtures import SessionBroker
from tests.agents.fleet import Fleet
from tests.support.harness import UNDISTURBED, wait_for
from tests.support.page_commands import command_line
from tests.support.patience import DEADLINE_S
from tests.support.places import DOCS

PAGE = DOCS / "operating.md"
MIB = 1 << 20
OURS = ("holdfast_", "kafka_")


def table(page: str, name: str) -> str:
    """Return the text between the marks of *name*."""
    found = re.search(rf"^<!-- {name} -->\n(.*?)^<!-- end -->", page, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the page has no table of {name}"
    return found[1]


def check(name: str, wanted: str) -> None:
    """Compare a table of the page with *wanted*, or write it."""
    page = PAGE.read_text()
    if os.environ.get("REWRITE_PAGES"):
        page = page.replace(f"<!-- {name} -->\n{table(page, name)}", f"<!-- {name} -->\n{wanted}")
        PAGE.write_text(page)
    assert table(page, name) == wanted


# -- settings


def shown(name: str, value: object) -> str:
    """Return a value as the page shows it.

    >>> shown("web_port", 6066), shown("fetch_bytes", 8 << 20), shown("standbys", 0), shown("web_url", None), shown("compat_view", False)
    ('6066', '8 MiB', '0', '', 'false')
    """  # noqa: E501
    if value is None or value == float("inf"):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if name.endswith("_bytes") and isinstance(value, int):
        unit, size = next(
            each for each in (("GiB", 1 << 30), ("MiB", MIB), ("KiB", 1024)) if value >= each[1]
        )
        return f"{value // size:,} {unit}"
    return (
        f"{value:,}"
        if isinstance(value, int) and value >= 10_000
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


def settings_table() -> str:
    """Return the settings as holdfast.config declares them."""
    lines = ["| Setting | Default | Range | Meaning |", "|---|---|---|---|"]
    for declared in fields(Settings):
        if declared.name in ("kafka", "spark_conf", "origins"):
            continue
        about: Mapping[str, Any] = declared.metadata
        low, high = (
            shown(declared.name, about[bound]) if about["low"] is not None else ""
            for bound in ("low", "high")
        )
        lines.append(
            f"| `{declared.name}` | {shown(declared.name, getattr(Settings(), declared.name))} "
            f"| {f'{low} to {high}' if low else ''} | {about['doc']} |"
        )
    return "\n".join([*lines, ""])


def test_the_table_of_settings_is_what_the_program_declares() -> None:
    check("settings", settings_table())


# -- metrics


def families(page: str) -> list[Metric]:
    return [family for family in text_string_to_metric_families(page) if family.name.startswith(OURS)]


OF_STEPS = {
    "holdfast_watermark_lag_seconds": {"origin", "partition", "table", "topic"},
    "holdfast_late_records": {"cause", "partition", "table"},
}
"""The metrics of windows and joins downstream of steps, which this test's fleet has not, with labels."""


def metrics_table(page: str) -> str:
    """Return the metrics of a worker's page."""
    lines = ["| Metric | Type | Labels | Meaning |", "|---|---|---|---|"]
    for family in families(page):
        shown_labels = {label for sample in family.samples for label in sample.labels}
        labels = sorted((shown_labels or OF_STEPS.get(family.name, set())) - {"le"})
        name = f"{family.name}_total" if family.type == "counter" else family.name
        lines.append(f"| `{name}` | {family.type} | {', '.join(labels)} | {family.documentation} |")
    return "\n".join([*lines, ""])


def test_the_table_of_metrics_is_that_of_a_worker(broker: SessionBroker, tmp_path: Path) -> None:
    fleet = Fleet(broker, tmp_path, app="metrics", partitions=2, standbys=1).create_topics()
    try:
        patient = {f"HOLDFAST_{name.upper()}": str(value) for name, value in UNDISTURBED.items()}
        first, second = (fleet.worker(**patient).start() for _ in range(2))
        fleet.wait_spread(first, second)
        assert first.ask("/tables/claims/0/rows/g%2Ft%2F0")[0] in (200, 421)

        def complete() -> str | None:
            page = first.ask("/metrics")[1]
            found = [family for family in families(page) if family.name not in OF_STEPS]
            return page if found and all(family.samples for family in found) else None

        page = wait_for("a sample of every metric", complete, DEADLINE_S, first.tail)
    finally:
        fleet.close()
    check("metrics", metrics_table(page))


# -- commands and numbers


def commands(page: str) -> Iterator[list[str]]:
    """Yield the words of each `holdfast …` command on *page*, without options and what belongs to them."""
    for found in re.finditer(r"(?:`|\$ |^ {4})holdfast ((?:-A \w+ )?[a-z][^`\n#;|]*)", page, re.MULTILINE):
        words = re.sub(r"(^| )(-A|--\w[\w-]*)([ =]\S+)?", " ", found[1]).split()
        if words:
            yield words


def unknown(words: list[str]) -> str | None:
    """Return the first word that should name a command and does not."""
    command = command_line()
    for word in words:
        if not hasattr(command, "get_command"):
            return None
        command = command.get_command(typer.Context(command), word)
        if command is None:
            return word
    return None


def options(page: str) -> Iterator[tuple[list[str], set[str]]]:
    """Yield the words of each command on *page* with the options that it is given, also where a sentence
    leaves out `holdfast`.
    """
    bare = f"`((?:{'|'.join(COMMANDS)}) [^`\\n]*--[^`\\n]*)`"
    whole = rf"(?:`|\$ |^ {{4}})holdfast ((?:-A \w+ )?[a-z][^`\n#;|]*)|{bare}"
    for found in re.finditer(whole, page, re.MULTILINE):
        words = re.sub(r"(^| )-A \w+", "", found[1] or found[2]).split()
        yield words, {re.split(r"[^\w-]", each)[0] for each in words if each.startswith("--")}


def unknown_options(words: list[str], given: set[str]) -> set[str]:
    """Return those of *given* that the command of these words does not have."""
    command = command_line()
    known = {name for each in command.params for name in each.opts}
    for word in words:
        if not hasattr(command, "get_command"):
            break
        if (inner := command.get_command(typer.Context(command), word)) is None:
            break
        command = inner
    return given - known - {name for each in command.params for name in each.opts} - {"--help"}


PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in DOCS.glob("*.md"))]


@pytest.mark.parametrize("name", PAGES)
def test_every_option_on_the_pages_exists(name: str) -> None:
    found = options((DOCS.parent / name).read_text())
    assert [(words, wrong) for words, given in found if (wrong := unknown_options(words, given))] == []


@pytest.mark.parametrize("name", ["operating.md", "tutorial.md"])
def test_every_command_on_the_pages_exists(name: str) -> None:
    found = list(commands((DOCS / name).read_text()))
    assert len(found) > 5
    assert [words for words in found if unknown(words)] == []


def test_the_limits_on_the_page_are_those_of_the_program() -> None:
    page = PAGE.read_text()
    assert f"| key of a row or timer | {LIMIT_KEY_BYTES:,} bytes |" in page
    assert f"| stored row, emitted record | {LIMIT_BYTES:,} bytes;" in page
    assert f"| queries in progress on one worker | {LIMIT_IN_FLIGHT:,} |" in page
    assert LIMIT_KEYS == LIMIT_PAGE_ROWS
    assert f"| {LIMIT_KEYS:,} each, and {LIMIT_REPLY_BYTES // MIB} MiB a reply;" in page
    assert f"| {LIMIT_WAIT_MS // 1000} s a request |" in page


# -- the checks can fail


def test_a_command_that_does_not_exist_is_found() -> None:
    assert unknown(["topics", "create"]) is None
    assert unknown(["topics", "make"]) == "make"
    assert unknown(["nothing"]) == "nothing"
    assert list(commands("`holdfast -A shop topics create --partitions 4` and `holdfast dev up`")) == [
        ["topics", "create"],
        ["dev", "up"],
    ]


def test_an_option_that_does_not_exist_is_found() -> None:
    page = "`verify --source bronze` and `holdfast -A shop verify totals --from=bronze --strict`"
    assert [unknown_options(*each) for each in options(page)] == [{"--source"}, set()]


def test_another_table_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REWRITE_PAGES", raising=False)
    with pytest.raises(AssertionError):
        check("settings", settings_table().replace("6066", "6067"))
