"""`holdfast verify`: compares a live table with a replay of its source, by hash; names the first key that
differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.lake.engines import EngineName, EngineOption, StateMemoryOption, takes_spark
from holdfast.cli.lake.progress import shown_progress
from holdfast.cli.lake.sources import LakeOption, SourceOption, history_options
from holdfast.cli.options.application import load_application
from holdfast.cli.options.context import globals_of, output_of
from holdfast.cli.output import Output, left_out, note, number_of, show, show_json
from holdfast.core.engine.declared.chains import require_chains
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.clients.tables.inspecting import StoreInspector
    from holdfast.config import Settings
    from holdfast.core.engine.declared.processor import Processor
    from holdfast.core.engine.query_wire import InspectReply
    from holdfast.pipeline.replay import ReplayOptions
    from holdfast.pipeline.spark.session import SparkOptions
    from holdfast.pipeline.verify.store import StoreVerdict
    from holdfast.pipeline.verify.table import TableVerdict

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    help=(
        "Replay a processor, or each one, up to the position its live table has reached and compare by hash."
        " Exit code 1 when they differ."
    )
)
@takes_spark(quick=True)
def verify(
    context: typer.Context,
    spark: SparkOptions,
    name: Annotated[
        str | None, typer.Argument(metavar="[PROCESSOR]", help="The processor; without it, each one.")
    ] = None,
    engine: EngineOption = EngineName.AUTO,
    source: SourceOption = None,
    lake: LakeOption = None,
    store: Annotated[
        bool,
        typer.Option(
            "--store",
            help=(
                "Compare what the workers serve as well: replay, changelog and store, at the store's offset."
            ),
        ),
    ] = False,
    emits: Annotated[
        bool,
        typer.Option(
            "--emits",
            help="Compare the emitted topics instead, and name the first record that differs.",
        ),
    ] = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help=(
                "Exit code 1 also if records are missing, because equal states then prove nothing about"
                " these."
            ),
        ),
    ] = False,
    store_timeout_s: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="With --store: how long a worker may take to read a partition."),
    ] = 600.0,
    state_memory_mb: StateMemoryOption = 256,
) -> None:
    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    require_chains(application.processors)
    if emits and store:
        raise ConfigError("--emits compares what was emitted, --store the rows: ask for one of them")
    options = history_options(engine, source, lake, None, state_memory_mb=state_memory_mb, spark=spark)
    named = application.processors if name is None else [application.processor(name)]
    shown = []
    for each in named:
        if emits and (each.emits or name is not None):
            shown.append(_emits_of(context, each, application.settings, options))
        elif emits:
            shown.append(_nothing_to_compare(context, each, "it emits nothing"))
        elif each.stateless and (store or name is None):
            what = "a step keeps no rows to compare; --emits compares the records that it has sent"
            shown.append(_nothing_to_compare(context, each, what))
        elif store:
            shown.append(_stores_of(context, each, application.settings, options, store_timeout_s))
        else:
            shown.append(_table_of(context, each, application.settings, options))
    if output_of(context) is Output.JSON:
        documents = [each.document for each in shown]
        show_json(documents if name is None else documents[0])
    if any(not each.equal or (strict and each.partial) for each in shown):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Shown:
    """The outcome for one processor, which was printed unless JSON is asked for."""

    document: dict[str, Any]
    equal: bool = True
    partial: bool = False


def _nothing_to_compare(context: typer.Context, processor: Processor[Any, Any], why: str) -> _Shown:
    if output_of(context) is not Output.JSON:
        note(f"{processor.name}: {why}")
    document = {"processor": processor.name, "version": processor.version, "equal": True, "note": why}
    return _Shown(document)


def _table_of(
    context: typer.Context, processor: Processor[Any, Any], settings: Settings, options: ReplayOptions
) -> _Shown:
    from holdfast.pipeline.verify.table import verify as run

    with shown_progress():
        verdict = run(processor, settings, options)
    same = f"equal{_partly(verdict)}" if verdict.equal else "DIFFERENT"
    columns = ("partition", "applied", "equal", "live_digest", "replayed_digest")
    return _report(context, verdict, columns, f"{processor.name}: {same}", f"live {verdict.live_digest}")


def _partly(verdict: TableVerdict | StoreVerdict) -> str:
    return " but PARTIAL, as far as the log reaches back," if verdict.partial else ""


def _report(
    context: typer.Context,
    verdict: TableVerdict | StoreVerdict,
    columns: tuple[str, ...],
    found: str,
    digest: str,
) -> _Shown:
    """Print a verdict unless JSON is asked for, and return its outcome."""
    document = verdict.document()
    if output_of(context) is not Output.JSON:
        rows = [
            {**each, "differs": ",".join(each.get("differs") or ()) or None}
            for each in document["partitions"]
        ]
        show(rows, columns, Output.TABLE)
        for each in verdict.partitions:
            if each.cause is not None:
                note(f"partition {each.partition}: {each.explain()}")
        for base in verdict.bases:
            note(base)
        for why in verdict.partial:
            note(f"partial: {why}")
        read = f"{number_of(verdict.records, 'record')}{left_out(verdict.skipped)} on {verdict.engine}"
        note(f"{found} after {read}; {digest}")
    return _Shown(document, verdict.equal, bool(verdict.partial))


def _emits_of(
    context: typer.Context, processor: Processor[Any, Any], settings: Settings, options: ReplayOptions
) -> _Shown:
    from holdfast.pipeline.verify.emits import verify_emits

    with shown_progress():
        verdict = verify_emits(processor, settings, options)
    document = verdict.document()
    if output_of(context) is not Output.JSON:
        show(document["topics"], ("topic", "expected", "found", "earlier", "equal"), Output.TABLE)
        for topic in verdict.cut:
            note(f"{topic} has lost the head of its log: only what is left was compared")
        for topic in verdict.compacted:
            note(f"{topic} is compacted: only what that left of each key was compared")
        for each in verdict.topics:
            if each.difference is not None:
                note(each.difference.explain())
        same = "what was emitted is what a replay emits" if verdict.equal else "DIFFERENT"
        note(f"{processor.name}: {same}, after {number_of(verdict.records, 'record')} on {verdict.engine}")
    return _Shown(document, verdict.equal)


@dataclass(frozen=True, slots=True)
class _Stores:
    """The workers' stores for `verify_store`, each call with the command's deadline."""

    inspector: StoreInspector
    timeout_s: float

    def partitions(self, processor: Processor[Any, Any]) -> int:
        return self.inspector.partitions(processor)

    def digest(self, processor: Processor[Any, Any], partition: int) -> InspectReply:
        return self.inspector.digest(processor, partition, self.timeout_s)

    def stored(self, processor: Processor[Any, Any], found: InspectReply) -> Iterator[tuple[bytes, bytes]]:
        return self.inspector.stored(processor, found)


def _stores_of(
    context: typer.Context,
    processor: Processor[Any, Any],
    settings: Settings,
    options: ReplayOptions,
    timeout_s: float,
) -> _Shown:
    from holdfast.clients.tables.inspecting import StoreInspector
    from holdfast.pipeline.verify.store import verify_store

    with StoreInspector(settings) as inspector:
        verdict = verify_store(processor, settings, _Stores(inspector, timeout_s), options)
    same = f"replay, changelog and store are equal{_partly(verdict)}" if verdict.equal else "DIFFERENT"
    columns = (
        "partition",
        "applied",
        "equal",
        "differs",
        "store_digest",
        "changelog_digest",
        "replayed_digest",
    )
    return _report(context, verdict, columns, f"{processor.name}: {same}", f"store {verdict.store_digest}")
