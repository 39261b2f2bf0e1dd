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
        "Replay a processor up to the position its live table has reached and compare by hash. Exit code 1"
        " when they differ."
    )
)
@takes_spark(quick=True)
def verify(
    context: typer.Context,
    spark: SparkOptions,
    name: Annotated[str, typer.Argument(metavar="PROCESSOR", help="The processor.")],
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
    from holdfast.pipeline.verify.table import verify as run

    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    require_chains(application.processors)
    if emits and store:
        raise ConfigError("--emits compares what was emitted, --store the rows: ask for one of them")
    options = history_options(engine, source, lake, None, state_memory_mb=state_memory_mb, spark=spark)
    if emits:
        return _of_emits(context, application.processor(name), application.settings, options)
    if store:
        return _of_stores(
            context,
            application.processor(name),
            application.settings,
            options,
            store_timeout_s,
            strict=strict,
        )
    with shown_progress():
        verdict = run(application.processor(name), application.settings, options)
    same = f"equal{_partly(verdict)}" if verdict.equal else "DIFFERENT"
    columns = ("partition", "applied", "equal", "live_digest", "replayed_digest")
    _report(context, verdict, columns, f"{name}: {same}", f"live {verdict.live_digest}", strict=strict)


def _partly(verdict: TableVerdict | StoreVerdict) -> str:
    return " but PARTIAL, as far as the log reaches back," if verdict.partial else ""


def _report(
    context: typer.Context,
    verdict: TableVerdict | StoreVerdict,
    columns: tuple[str, ...],
    found: str,
    digest: str,
    *,
    strict: bool,
) -> None:
    """Print what was compared, and exit with code 1 when it differs, or is partial and *strict*."""
    document = verdict.document()
    if output_of(context) is Output.JSON:
        show_json(document)
    else:
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
    if not verdict.equal or (strict and verdict.partial):
        raise typer.Exit(1)


def _of_emits(
    context: typer.Context, processor: Processor[Any, Any], settings: Settings, options: ReplayOptions
) -> None:
    from holdfast.pipeline.verify.emits import verify_emits

    with shown_progress():
        verdict = verify_emits(processor, settings, options)
    document = verdict.document()
    if output_of(context) is Output.JSON:
        show_json(document)
    else:
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
    if not verdict.equal:
        raise typer.Exit(1)


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


def _of_stores(
    context: typer.Context,
    processor: Processor[Any, Any],
    settings: Settings,
    options: ReplayOptions,
    timeout_s: float,
    *,
    strict: bool,
) -> None:
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
    _report(
        context, verdict, columns, f"{processor.name}: {same}", f"store {verdict.store_digest}", strict=strict
    )
