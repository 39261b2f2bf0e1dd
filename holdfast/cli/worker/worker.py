"""`holdfast -A shop worker`: runs one worker instead of this process, or several below a supervisor."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options.application import BUILT_IN_APP
from holdfast.cli.options.context import globals_of
from holdfast.cli.output import note
from holdfast.cli.worker.launching import Launch, launches, require_ports
from holdfast.config.sources import find_file

MOST_PROCESSES = 256

app = typer.Typer(rich_markup_mode=None, add_completion=False)


class LogLevel(StrEnum):
    """The choices of `--loglevel`: the levels of Faust's workers."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


@app.command(help="Run a worker of the application, or several on this machine with --processes.")
def worker(
    context: typer.Context,
    processes: Annotated[
        int,
        typer.Option(
            "--processes",
            "-n",
            min=1,
            max=MOST_PROCESSES,
            help=(
                "Workers on this machine. Worker i listens on web_port + i - 1 and keeps its stores in"
                " data_dir/worker.i; "
                "one that ends is started again."
            ),
        ),
    ] = 1,
    port: Annotated[int | None, typer.Option(help="As --set web_port=PORT.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="As --set data_dir=FOLDER.")] = None,
    accept_partial: Annotated[
        bool,
        typer.Option(
            "--accept-partial",
            help="Go on with tables whose changelog and sources have lost records, as far as they are left.",
        ),
    ] = False,
    level: Annotated[LogLevel, typer.Option("--loglevel", "-l")] = LogLevel.INFO,
) -> None:
    chosen = globals_of(context)
    chosen.flags |= {
        name: value for name, value in (("web_port", port), ("data_dir", data_dir)) if value is not None
    }
    if accept_partial:
        chosen.flags["accept_partial"] = True
    settings = chosen.settings()
    if chosen.application is None and settings.log_format == "text":
        note(
            "no -A: this starts holdfast's own application, which folds claims and producers; your own starts"
            f" with `holdfast -A MODULE worker`, and this one without this line with -A {BUILT_IN_APP}"
        )
    file = find_file(chosen.config, os.environ, Path.cwd())
    made = launches(
        settings,
        chosen.flags,
        application=chosen.application,
        level=level.value,
        processes=processes,
        file=file,
    )
    if processes == 1:
        become(made[0])
    require_ports(settings, processes)
    from holdfast.cli.worker.supervising import supervise

    raise typer.Exit(supervise(made, settings))


def become(launch: Launch) -> None:
    """Replace this process by the worker, so that signals and the exit code are its own."""
    os.execve(launch.arguments[0], launch.arguments, os.environ | launch.variables)
