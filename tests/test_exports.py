"""The public face: what users import from `holdfast` and what it costs them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

import holdfast
from holdfast import clients, errors, streams
from tests.support.patience import DEADLINE_S
from tests.support.places import EXAMPLES, ROOT
from tests.test_docs import blocks

PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(EXAMPLES.rglob("*.py")),
]
PUBLIC_MODULES = {
    "holdfast",
    "holdfast.agents.services.bookkeeper",
    "holdfast.clients",
    "holdfast.dev.databases.schema_registry",
    "holdfast.dev.databases.servers",
    "holdfast.dev.fixtures",
    "holdfast.embedded.kafka",
    "holdfast.errors",
    "holdfast.outbox.goharvest",
    "holdfast.outbox.harvest.harvester",
    "holdfast.outbox.schema.layouts",
    "holdfast.outbox.schema.migrate",
    "holdfast.outbox.schema.tables",
    "holdfast.pipeline.pages.page",
    "holdfast.pipeline.pages.timelines",
    "holdfast.streams",
    "holdfast.testing",
}
OF_DEVELOPERS = {"DESIGN.md", "GLOSSARY.md", "PROTOCOL.md"}
"""Pages about the inside. All others are for users."""
FACE = [
    "Avro",
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
    "JsonSchema",
    "Msgpack",
    "OutboxRecord",
    "OutboxWriter",
    "Processor",
    "Protobuf",
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
    "traced",
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


def test_a_missing_name_is_an_ordinary_error() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'Processors'"):
        _ = holdfast.Processors
    assert not hasattr(holdfast, "_processor")


@pytest.mark.process
@pytest.mark.parametrize("name", [None, *NEEDS])
def test_a_name_brings_only_what_it_needs(name: str | None) -> None:
    use = f"holdfast.{name}; " if name else ""
    code = f"import sys, holdfast; {use}print(*[each for each in {sorted(COSTLY)!r} if each in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert set(ran.stdout.split()) == (NEEDS[name] if name else set())


def _imports(programs: Iterable[str]) -> set[str]:
    """Return the modules of holdfast that *programs* import, in whole statements of any length."""
    nodes = [node for text in programs for node in ast.walk(ast.parse(text))]
    found = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    found |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name for name in found if name.partition(".")[0] == "holdfast"}


def _named_modules(page: str) -> set[str]:
    """Return the modules of holdfast that the prose of *page* sends its readers to: `holdfast.x.y` or
    `holdfast.x.y.name(...)`. Topics and agents have such names too, but no file.
    """
    found = set()
    for name in re.findall(r"`(holdfast(?:\.\w+){2,})(?:\([^`]*\))?`", page):
        for module in (name, name.rpartition(".")[0]):
            path = ROOT / Path(*module.split("."))
            if path.with_suffix(".py").is_file() or (path / "__init__.py").is_file():
                found.add(module)
                break
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_and_examples_show_the_face_alone(page: Path) -> None:
    text = page.read_text()
    programs = [text] if page.suffix == ".py" else [b.text for b in blocks(text) if b.language == "python"]
    assert _imports(programs) <= PUBLIC_MODULES
    if page.suffix == ".md" and page.name not in OF_DEVELOPERS:
        assert _named_modules(text) <= PUBLIC_MODULES


def test_the_face_names_its_modules() -> None:
    text = (holdfast.__doc__ or "") + "`holdfast`"
    assert [name for name in sorted(PUBLIC_MODULES) if f"`{name}`" not in text] == []


def test_an_internal_module_is_found_however_it_is_named() -> None:
    assert _imports(
        ["from holdfast.core.engine.state.rows import (\n    Rows,\n)\nimport holdfast.clock\n"]
    ) == {
        "holdfast.core.engine.state.rows",
        "holdfast.clock",
    }
    assert _named_modules(
        "`holdfast.core.engine.state.rows.Rows(x)`, `holdfast.core.claims`, `holdfast.no.topic`"
    ) == {
        "holdfast.core.engine.state.rows",
        "holdfast.core.claims",
    }


def test_the_tree_of_errors_holds_each_below_what_it_is_a_kind_of() -> None:
    found, path = dict[str, str](), ["HoldfastError"]
    for line in (errors.__doc__ or "").splitlines():
        if (told := re.match(r"([│ ]*)[├└]── (\w+) ", line)) is not None:
            depth = 1 + len(told[1]) // 4
            path = [*path[:depth], told[2]]
            found[told[2]] = path[-2]
    declared = {
        name: each.__mro__[1].__name__
        for name, each in vars(errors).items()
        if isinstance(each, type) and issubclass(each, errors.HoldfastError) and name != "HoldfastError"
    }
    assert found == declared
