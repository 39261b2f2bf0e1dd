"""`holdfast topology`: the processors with their sources, tables and emits."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from holdfast.cli.options.application import load_application
from holdfast.cli.options.context import globals_of, output_of
from holdfast.cli.output import Output, show
from holdfast.core.engine.declared.graph import TopologyGraph

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class GraphFormat(StrEnum):
    """The format of a graph for people; `--output json` is for programs."""

    TEXT = "text"
    MERMAID = "mermaid"


COLUMNS = ("name", "version", "sources", "table", "tables", "reads", "emits", "timers", "internal")


@app.command(
    help="Print the graph of topics and processors; connects to nothing. `--output json` is for programs."
)
def topology(
    context: typer.Context,
    written: Annotated[
        GraphFormat, typer.Option("--format", help="For people: text, or a Mermaid flowchart.")
    ] = GraphFormat.TEXT,
) -> None:
    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    graph = TopologyGraph.of(application.processors)
    if output_of(context) is Output.TABLE:
        typer.echo(graph.mermaid() if written is GraphFormat.MERMAID else graph.text())
        return
    show(graph.records(), COLUMNS, output_of(context))
