"""`holdfast demo`: the full demo on real components, on this machine, in about two minutes; `--embedded`:
what of it needs no JDK, in less than one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.command_group import CommandGroup
from holdfast.cli.output import note
from holdfast.dev.signals import Interrupted

WATCH_S, EMBEDDED_WATCH_S = 6.0, 3.0
app = typer.Typer(
    cls=CommandGroup,
    rich_markup_mode=None,
    add_completion=False,
    help=(
        "Run the full demo on real components: a broker, two workers (one is killed), a fleet of clients,"
        " Spark, and one hash; services that claim, and an outbox."
    ),
)


@app.callback(invoke_without_command=True)
def demo(
    context: typer.Context,
    clients: Annotated[int, typer.Option(min=8, max=100_000, help="Clients of the simulated fleet.")] = 200,
    claims: Annotated[
        int, typer.Option(min=8, max=1_000_000, help="Partitions they claim and keep alive.")
    ] = 2_000,
    seconds: Annotated[
        float | None,
        typer.Option(
            min=1,
            max=3600,
            help="How long to watch the fleet before a worker is killed. [default: 6; with --embedded 3]",
        ),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Leave everything running and print the addresses; `holdfast demo down` ends it."
        ),
    ] = False,
    embedded: Annotated[
        bool,
        typer.Option("--embedded", help="Take the embedded Kafka, and leave Spark out: no JDK is needed."),
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="Folder for all of it. [default: a temporary one; with --keep .holdfast/demo]"
        ),
    ] = None,
) -> None:
    if context.invoked_subcommand is not None:
        return
    from holdfast.dev.demo.run import DemoOptions, run_demo

    try:
        run_demo(
            DemoOptions(
                clients=clients,
                claims=claims,
                watch_s=seconds or (EMBEDDED_WATCH_S if embedded else WATCH_S),
                keep=keep,
                embedded=embedded,
                folder=folder,
            )
        )
    except Interrupted as interrupted:
        note(f"\n{interrupted}: everything that was started has been ended")
        raise typer.Exit(interrupted.exit_code) from None


@app.command(help="End a demo that `--keep` left running, and remove its folder.")
def down(
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Folder of the demo. [default: .holdfast/demo]")
    ] = None,
) -> None:
    from holdfast.dev.demo.environment import KEPT_FOLDER, down

    ended = down(folder or KEPT_FOLDER)
    note(f"ended: {', '.join(ended)}" if ended else "nothing of it ran any more; its folder is removed")
