"""The public face: what users import from `holdfast` and what it costs them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast
from holdfast import clients, streams
from tests.support.places import ROOT

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").glob("*.py")),
]
PUBLIC_MODULES = {
    "holdfast",
    "holdfast.clients",
    "holdfast.errors",
    "holdfast.outbox.schema.migrate",
    "holdfast.outbox.goharvest",
    "holdfast.dev.fixtures",
    "holdfast.streams",
    "holdfast.testing",
}
FACE = [
    "BlockingClaimConsumer",
    "BlockingTableClient",
    "Bytes",
    "ClaimConsumer",
    "ClaimedMessage",
    "Emit",
    "FoldWith",
    "Global",
    "HoldfastError",
    "Internal",
    "Json",
    "Msgpack",
    "OutboxRecord",
    "OutboxWriter",
    "Processor",
    "RangeConsumer",
    "Rows",
    "SequencedProducer",
    "Settings",
    "Source",
    "Stream",
    "Table",
    "TableClient",
    "Text",
    "by_key",
    "create_app",
    "settings_from_environment",
]
NEEDS = {"by_key": set(), "Processor": {"msgspec"}, "ClaimConsumer": {"msgspec", "confluent_kafka"}}
"""Of some names, which of the packages below their import brings."""
COSTLY = {"aiohttp", "confluent_kafka", "faust", "msgspec", "pyspark", "rocksdict", "sqlalchemy"}


def test_the_face_is_what_it_was() -> None:
    assert sorted(FACE) == sorted(holdfast.__all__) == sorted(holdfast._HOMES)
    assert set(clients.__all__) < set(FACE)
    assert all(getattr(clients, name) is getattr(holdfast, name) for name in clients.__all__)


def test_what_streams_offers_is_documented_and_in_order() -> None:
    assert sorted(streams.__all__) == streams.__all__
    assert all((getattr(streams, name).__doc__ or "").strip() for name in streams.__all__)


@pytest.mark.parametrize("name", FACE)
def test_each_name_is_there_and_documented(name: str) -> None:
    found = getattr(holdfast, name)
    assert name in dir(holdfast)
    assert found.__module__.startswith("holdfast.")
    assert (found.__doc__ or "").strip(), f"{name} says nothing of itself"


def test_what_is_not_there_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'Processors'"):
        _ = holdfast.Processors
    assert not hasattr(holdfast, "_processor")


@pytest.mark.process
@pytest.mark.parametrize("name", [None, *NEEDS])
def test_a_name_brings_only_what_it_needs(name: str | None) -> None:
    use = f"holdfast.{name}; " if name else ""
    code = f"import sys, holdfast; {use}print(*[each for each in {sorted(COSTLY)!r} if each in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert set(ran.stdout.split()) == (NEEDS[name] if name else set())


def _imports(text: str) -> list[str]:
    """Return the modules of holdfast that a page's snippets or an example import."""
    lines = [
        line.strip()
        for line in text.splitlines()
        if line.strip().startswith(("from holdfast", "import holdfast"))
    ]
    trees = [ast.parse(line) for line in lines if not line.endswith("(")]
    return [
        node.module or "" for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_and_examples_show_the_face_alone(page: Path) -> None:
    assert set(_imports(page.read_text())) <= PUBLIC_MODULES
