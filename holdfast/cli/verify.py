"""`holdfast verify`: a live table against a replay of its source, equal by hash or the first key that differs."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.application import load_application
from holdfast.cli.context import globals_of, output_of
from holdfast.cli.output import Output, note, show, show_json
from holdfast.cli.pipeline import ConfOption, MasterOption, MemoryOption, absolute, assignments
from holdfast.cli.replay import EngineName, EngineOption, LakeOption, SourceName, SourceOption

app = typer.Typer(rich_markup_mode=None)


@app.command(help="Replay a processor up to the position its live table has reached and compare by hash. Exit code 1 when they differ.")
def verify(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The processor.")],
    engine: EngineOption = EngineName.AUTO,
    source: SourceOption = SourceName.TOPIC,
    lake: LakeOption = None,
    master: MasterOption = "local[*]",
    memory: MemoryOption = "1g",
    conf: ConfOption = None,
) -> None:
    from holdfast.pipeline.replay import ReplayOptions
    from holdfast.pipeline.session import SparkOptions
    from holdfast.pipeline.verify import verify as run

    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    options = ReplayOptions(
        engine=engine.value,
        source=source.value,
        lake=None if lake is None else absolute(lake),
        spark=SparkOptions(master=master, memory=memory, conf=assignments(conf), quick=True),
    )
    verdict = run(application.processor(name), application.settings, options)
    document = verdict.document()
    if output_of(context) is Output.JSON:
        show_json(document)
    else:
        show(document["partitions"], ("partition", "applied", "equal", "live_digest", "replayed_digest"), Output.TABLE)
        for each in verdict.partitions:
            if each.cause is not None:
                note(f"partition {each.partition}: {each.explain()}")
        same = "equal" if verdict.equal else "DIFFERENT"
        note(f"{name}: {same} after {verdict.records} records on {verdict.engine}; live {verdict.live_digest}")
    if not verdict.equal:
        raise typer.Exit(1)
