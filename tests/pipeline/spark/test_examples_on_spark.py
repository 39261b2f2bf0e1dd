"""Every processor of the examples and of the pages folds on Spark as it does here."""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.config import Settings
from holdfast.pipeline.folds.result_rows import RESULT
from holdfast.pipeline.folds.results import gather
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.run import SparkTasks
from holdfast.pipeline.spark.shipping import pack, ship
from holdfast.testing import Topology
from tests.pipeline.accounts import Record, accounts
from tests.pipeline.lakes import write_bronze
from tests.pipeline.recorded import RecordedRun, in_tasks, recorded_runs
from tests.support.places import DOCS, EXAMPLES, ROOT, example_file
from tests.test_docs import blocks, program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOUR_MS = 3_600_000
TASKS = 2
SALE = {"item": "green", "shelf": "tea", "pieces": 2}
# Topic, key and value of each record of an example's input; a number alone is a time of the tick clock.
WRITTEN: dict[str, Sequence[tuple[str, str, Any] | int]] = {
    "balances": [("paid-in", "ada", 500), ("paid-out", "ada", 200), ("paid-in", "bo", 7)],
    "bestsellers": [("sales", "green", SALE), ("sales", "black", SALE | {"item": "black", "pieces": 3})],
    "counting": [("words", "", "to"), ("words", "", "be"), ("words", "", "to")],
    "currency_rates": [
        ("foreign-orders", "ada", {"id": "o-1", "currency": "usd", "amount": 100}),
        ("rates", "usd", 0.9),
        ("foreign-orders", "ada", {"id": "o-2", "currency": "usd", "amount": 100}),
        ("rates", "usd", 0.8),
        ("foreign-orders", "ada", {"id": "o-3", "currency": "usd", "amount": 100}),
    ],
    "desk_tables": [("payments", "o-1", {"order": "o-1", "cents": 500})] * 2,
    "desk_topology": [
        ("orders", "o-1", {"order": "o-1", "customer": "ada", "cents": 1_500}),
        ("payments", "o-1", {"order": "o-1", "cents": 500}),
        ("orders", "o-2", {"order": "o-2", "customer": "bo", "cents": 1}),
    ],
    "enrich": [
        ("customers", "ada", {"name": "Ada"}),
        ("orders", "ada", {"id": 1, "cents": 1999}),
        ("customers", "ada", None),
        ("orders", "ada", {"id": 2, "cents": 1}),
        ("customers", "bo", {"name": "Bo"}),
    ],
    "interval_join": [
        ("impressions", "ad/ada", {"page": "home", "at_ms": 1_000}),
        ("clicks", "ad/ada", {"at_ms": 4_000}),
        ("impressions", "ad/bo", {"page": "home", "at_ms": 60_000}),
        2_000_000_000_000,
        ("impressions", "ad/bo", {"page": "cart", "at_ms": 2_000_000_000_000}),
    ],
    "page_views": [
        ("views", "home", {"page": "home", "at_ms": 1_000}),
        ("views", "home", {"page": "home", "at_ms": 2_000}),
        ("views", "cart", {"page": "cart", "at_ms": 3 * HOUR_MS}),
        ("views", "home", {"page": "home", "at_ms": 3_000}),
    ],
    "payments_once": [("payments", "p-1", {"id": "p-1", "cents": 500})] * 2,
    "priced_orders": [
        ("open-orders", "o-1", {"product": "tea", "pieces": 2}),
        ("products", "tea", 30),
        ("open-orders", "o-2", {"product": "tea", "pieces": 1}),
        ("products", "tea", 40),
    ],
    "shelves": [("item-prices", "tea", 30), ("item-stock", "tea", 4), ("item-prices", "jam", 50)],
    "shop": [("orders", "ada", {"customer": "ada", "cents": 99_000})] * 2
    + [("orders", "bo", {"customer": "bo", "cents": 1})] * 4,
    "traced_bills": [("orders", "o-1", "o-1"), ("orders", "o-2", "o-2"), ("orders", "o-1", "o-1")],
    "visits": [
        ("looks", "ada", {"visitor": "ada", "item": "tea", "at_ms": 1_000}),
        ("looks", "ada", {"visitor": "ada", "item": "jam", "at_ms": 9_000}),
        ("looks", "bo", {"visitor": "bo", "item": "tea", "at_ms": 5 * HOUR_MS}),
    ],
    "word_count": [("lines", "", "To be or not to be"), ("lines", "", "to")],
}
WITHOUT_PROCESSORS = {"desk"}
"""Applications of Faust's agents alone, of which Spark folds nothing."""
PAGES = {"readme": ROOT / "README.md"} | {
    page.stem.replace("-", "_"): page for page in (DOCS / "tutorial.md", DOCS / "tutorial-streams.md")
}

Load = Callable[[str, Path], ModuleType]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    """Give a loader of modules by name and folder, as a command with `-A` loads them; they are gone after the
    test.
    """
    before = {*sys.modules}

    def loaded(name: str, folder: Path) -> ModuleType:
        monkeypatch.delitem(sys.modules, name, raising=False)  # another test's, of a module of that name
        monkeypatch.syspath_prepend(folder)
        return import_module(name)

    yield loaded
    for name in {*sys.modules} - before:
        if (sys.modules[name].__dict__.get("__file__") or "").endswith((f"{name}.py",)):
            del sys.modules[name]


def of_examples(load: Load) -> Iterator[RecordedRun]:
    """Yield each processor of examples/ with its folded input from above."""
    with_app = {path.stem for path in EXAMPLES.rglob("*.py") if "create_app(" in path.read_text()}
    assert with_app == {*WRITTEN, *WITHOUT_PROCESSORS}
    for name, written in WRITTEN.items():
        topology = Topology(load(name, example_file(f"{name}.py").parent).app, partitions=1)
        at_ms = 1_700_000_000_000
        for each in written:
            if isinstance(each, int):
                topology.tick(at_ms := each)
            else:
                at_ms += 1_000
                topology.pipe(each[0], each[2], key=each[1], at=at_ms)
        assert not topology.refused
        runs = [*recorded_runs(topology)]
        assert {run.processor.name for run in runs} == {*topology.processors}, "each has folded something"
        yield from runs


def of_pages(load: Load, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RecordedRun]:
    """Yield the partitions that the processors of the pages have folded in the pages' own tests."""
    found: list[RecordedRun] = []
    check = Topology.check

    def recording(self: Topology) -> None:
        check(self)
        found.extend(recorded_runs(self))

    monkeypatch.setattr(Topology, "check", recording)
    for name, page in PAGES.items():
        text, _, _ = page.read_text().partition("\n## An outbox")  # its program folds nothing
        (folder / f"page_{name}.py").write_text(program(text))
        before = len(found)
        load(f"page_{name}", folder)
        assert len(found) > before
    yield from found


@pytest.mark.variant
def test_every_processor_of_examples_and_pages_comes_to_its_digest_on_spark(
    spark: SparkSession, load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [*of_examples(load), *of_pages(load, tmp_path, monkeypatch)]
    ship(spark, accounts())  # with it comes this package, whose function the tasks run
    for run in runs:
        ship(spark, run.processor)
    told = SparkTasks(spark, "examples").run(range(TASKS), in_tasks(runs, TASKS), RESULT)
    summaries, _ = gather(told, range(len(runs)))
    there = {summary.partition: summary for summary in summaries}
    for number, run in enumerate(runs):
        here, _ = gather(run.fold(number), [number])
        assert there[number] == here[0], run.processor.name
        assert (there[number].digest, there[number].refused) == (run.digest, 0), run.processor.name
        assert there[number].records > 0


def test_the_program_of_the_readme_is_replayed_on_spark(
    spark: SparkSession, load: Load, tmp_path: Path, lake: Path
) -> None:
    first = next(block for block in blocks((ROOT / "README.md").read_text()) if "runnable" in block.words)
    (tmp_path / "readme_shop.py").write_text(first.text)
    totals = load("readme_shop", tmp_path).totals
    records = [Record(at, 10 + at, None, b'{"customer":"c%d","cents":%d}' % (at % 3, at)) for at in range(20)]
    write_bronze(lake, "orders", {0: records, 1: records[:7]})

    def digest_by(engine: Any) -> str:
        return replay(
            totals, Settings(), ReplayOptions(engine=engine, source="bronze", lake=str(lake))
        ).digest

    assert digest_by("spark") == digest_by("local")


@pytest.mark.variant
@pytest.mark.long
def test_the_parts_of_a_processor_are_shipped_from_any_module(load: Load) -> None:
    apps = {name: load(name, example_file(f"{name}.py").parent).app for name in WRITTEN}
    for name, app in apps.items():
        for processor in app.processors.values():
            # The last steps of two chains decode bytes and count, or compare offsets: all of it is ours.
            if (name, processor.name) not in {("word_count", "counts"), ("priced_orders", "priced")}:
                assert f"{name}.py" in zipfile.ZipFile(io.BytesIO(pack(processor))).namelist()
