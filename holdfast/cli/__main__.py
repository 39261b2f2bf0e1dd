"""The `holdfast` command: global options, one lazily imported module per noun, and the exit codes.

0: done. 1: the operation failed. 2: the command line or a setting is wrong. 130: interrupted.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn, TextIO

import typer
from typer.core import TyperCommand

from holdfast.cli.command_group import CommandGroup
from holdfast.cli.cures import with_application
from holdfast.cli.options.context import Globals, read_assignments
from holdfast.cli.output import Output
from holdfast.errors import BrokerError, ConfigError, HoldfastError
from holdfast.extras import extra_of
from holdfast.terminal import escape_what_is_not_shown, given_arguments, printable


class Noun(NamedTuple):
    """A command of `holdfast`: its module below `holdfast.cli`, imported when the command runs, which offers
    `app`; its help.
    """

    module: str
    help: str


COMMANDS = {
    "acls": Noun("topics.acls", "Show the least rights that each role needs on a cluster with ACLs."),
    "audit": Noun("replay.audit", "Verify that each row was published once, in order."),
    "bootstrap": Noun(
        "replay.bootstrap", "Begin a table's version with the state that its fold makes from history."
    ),
    "claims": Noun("groups.claims", "Show who holds which partition."),
    "compare": Noun(
        "replay.compare",
        "Fold two versions of a processor over one history, and show where their rows differ.",
    ),
    "config": Noun("config", "Print the effective settings and where each comes from."),
    "console": Noun("console", "Serve pages that show the application as it runs."),
    "demo": Noun("demo", "Run the full demo on real components, in about two minutes."),
    "dev": Noun(
        "dev", "Run a Kafka on this machine for development and tests: Apache's, or the embedded one."
    ),
    "doctor": Noun("doctor.doctor", "Check what a worker needs, from Python to clocks; say what to do."),
    "explain": Noun(
        "logs.explain",
        "Show the record batches of a log, or a row as it was and the records that made it so.",
    ),
    "groups": Noun(
        "groups.groups", "Describe groups, show which keep up, pause and resume them, set their offsets."
    ),
    "new": Noun(
        "project.new", "Lay out a project of your own: application, tests, settings, and what runs it."
    ),
    "outbox": Noun("outbox.outbox", "Create, check and inspect the outbox of a service; publish its rows."),
    "pipeline": Noun(
        "pipeline.pipeline",
        "Land topics in a lake; check, fold, compact and expire its tables; trim the sources.",
    ),
    "producers": Noun("logs.producers", "Show the registered producers, their ledgers and transactions."),
    "quarantine": Noun(
        "tables.quarantine",
        "List, show and retry records that could not be decoded or folded; skip what cannot be read.",
    ),
    "replay": Noun(
        "replay.replay", "Fold a processor over its source's history, in this process or on Spark."
    ),
    "report": Noun(
        "pipeline.report", "Write a page about a period: ownership, takeovers, anomalies, quarantine."
    ),
    "reset": Noun(
        "topics.reset", "Take an application back to its beginning: state, positions, internal topics."
    ),
    "size": Noun(
        "size.size", "Estimate what an application needs of machines and brokers; connects to nothing."
    ),
    "tables": Noun(
        "tables.tables",
        "Read tables from the workers that serve them; inspect, repair and take over changelogs.",
    ),
    "tail": Noun("topics.tail", "Print records of a topic, decoded as the application declares them."),
    "topics": Noun("topics.topics", "List, create, check and describe the topics of an application."),
    "topology": Noun("topics.topology", "Print the graph of topics and processors."),
    "verify": Noun("replay.verify", "Compare a live table with a replay of its source."),
    "worker": Noun("worker.worker", "Run a worker of the application, or several on this machine."),
}
"""The commands by name."""

WAITING_LOGGERS = ("holdfast.pipeline.folds.waiting", "holdfast.clients.topics.admin.waits")
"""Loggers whose lines a waiting person sees, also without -v."""
LIMIT_DIGITS = 300

# With a value of their own, so that each may also follow the command: `holdfast topics list --output json`.
GLOBAL_OPTIONS = ("--config", "--bootstrap", "--bootstrap-server", "--set", "--app", "-A", "--output", "-o")
GLOBAL_FLAGS = ("-v", "-vv", "--verbose")


class LazyGroup(CommandGroup):
    """A group that imports a command only to run it; help and completion read the table above."""

    listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if self.listing:
            return TyperCommand(cmd_name, short_help=COMMANDS[cmd_name].help, rich_markup_mode=None)
        module = import_module(f"holdfast.cli.{COMMANDS[cmd_name].module}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        command.help = command.help or COMMANDS[cmd_name].help
        _share_output(command, ctx.params.get("output"))
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        with_stubs = self._listing()
        try:
            super().format_help(ctx, formatter)
        finally:
            self.listing = with_stubs

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        with_stubs = self._listing()
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self.listing = with_stubs

    def _listing(self) -> bool:
        before, self.listing = self.listing, True
        return before


def _share_output(command: Any, output: Output | None) -> None:
    """Make the form chosen before the command the default of those that declare an `--output` of their
    own.
    """
    for parameter in command.params:
        if parameter.name == "output" and output is not None:
            parameter.default = str(output)
    for inner in getattr(command, "commands", {}).values():
        _share_output(inner, output)


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"holdfast {version('holdfast')}")
        raise typer.Exit


@app.callback(
    help="Event-sourced processors on Kafka. The options below may stand before or after the command."
)
def root(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option(help="Settings file; else HOLDFAST_CONFIG, else holdfast.toml in this folder."),
    ] = None,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", "--bootstrap-server", help="Bootstrap brokers, host:port,host:port."),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Any setting, or kafka.<property>; may be repeated."
        ),
    ] = None,
    application: Annotated[
        str | None,
        typer.Option(
            "--app",
            "-A",
            metavar="MODULE[:NAME]",
            help="Your application, as for `faust -A`; else holdfast's own.",
        ),
    ] = None,
    output: Annotated[
        Output, typer.Option("--output", "-o", help="Format of the result on stdout.")
    ] = Output.TABLE,
    verbose: Annotated[
        int,
        typer.Option("--verbose", "-v", count=True, help="Log to stderr, and trace errors; -vv for more."),
    ] = 0,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    chosen = context.obj
    assert isinstance(chosen, Globals)
    chosen.config, chosen.application, chosen.output, chosen.verbose = config, application, output, verbose
    # Without -v `_fail` prints an error once, and librdkafka's log does not repeat it.
    logging.basicConfig(
        level={0: logging.CRITICAL, 1: logging.INFO}.get(verbose, logging.DEBUG), stream=sys.stderr
    )
    if not verbose:  # what waits for a broker, or for what folds need, is not to look as if it hung
        for name in WAITING_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
    chosen.flags = read_assignments(assignments or []) | (
        {"kafka.bootstrap.servers": bootstrap} if bootstrap is not None else {}
    )


def hoist(arguments: list[str]) -> list[str]:
    """Return the arguments with the global options first, so that they may be given anywhere before a `--`.

    >>> hoist(["topics", "list", "--output", "json", "-v"])
    ['--output', 'json', '-v', 'topics', 'list']
    >>> hoist(["topics", "list", "--set=app=shop", "-Ashop", "--", "-v"])
    ['--set=app=shop', '-Ashop', 'topics', 'list', '--', '-v']
    """
    first, rest, waiting = list[str](), list[str](), iter(arguments)
    for argument in waiting:
        if argument == "--":
            return [*first, *rest, argument, *waiting]
        if argument in GLOBAL_OPTIONS:
            first += [argument, *([value] if (value := next(waiting, None)) is not None else [])]
        elif argument in GLOBAL_FLAGS or argument.startswith(
            ("-A", *(f"{option}=" for option in GLOBAL_OPTIONS))
        ):
            first.append(argument)
        else:
            rest.append(argument)
    return [*first, *rest]


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command line and exit with its code."""
    chosen = Globals()
    given = given_arguments(sys.argv[1:]) if arguments is None else arguments
    # closed by the parent process, as by `>&-`; for all of its life
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    escape_what_is_not_shown()
    try:
        _refuse_endless(given)
        try:
            typer.main.get_command(app).main(args=hoist(given), prog_name="holdfast", obj=chosen)
        finally:
            sys.stdout.flush()  # here, where an error of a closed pipe or a full disk can still be reported
    except HoldfastError as error:
        wrong = isinstance(error, ConfigError)
        lines = [*(error.args if wrong else [str(error)]), *getattr(error, "__notes__", ())]
        if isinstance(error, BrokerError) and (told := chosen.without_file()) is not None:
            lines[-1] += f"; {told}"
        message = with_application("\n".join(" ".join(line.split()) for line in lines), chosen.application)
        _fail(message, code=2 if wrong else 1, verbose=chosen.verbose)
    except ModuleNotFoundError as error:
        extra = extra_of(error.name)
        if extra is None:
            raise
        _fail(
            f"this command needs {error.name}, which is not installed: pip install 'holdfast[{extra}]'",
            code=2,
            verbose=chosen.verbose,
        )
    except BrokenPipeError:
        _drop(sys.stdout, sys.__stdout__)
        sys.exit(1)
    except OSError as error:  # a full disk under stdout, a file that went away, no descriptor left
        _drop(sys.stdout, sys.__stdout__)
        _fail(
            f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}",
            code=1,
            verbose=chosen.verbose,
        )
    sys.exit(0)


def _refuse_endless(arguments: list[str]) -> None:
    """Refuse numbers that are too long: Python's int refuses 4,300 digits with a ValueError, a float of 309
    is infinite.
    """
    for argument in arguments:
        if (found := re.search(rf"\d{{{LIMIT_DIGITS}}}", argument)) is not None:
            raise ConfigError(
                f"{argument[:20]}...: has more than {LIMIT_DIGITS} digits in a row, from character"
                f" {found.start()} on"
            )


def _drop(stream: TextIO, original: TextIO | None) -> None:
    """Have what a stream did not take not be written again, and complained about, when the process ends."""
    if stream is original and stream is not None:
        with Path(os.devnull).open("w") as nowhere, suppress(OSError, ValueError):
            os.dup2(nowhere.fileno(), stream.fileno())


def _fail(message: str, *, code: int, verbose: int) -> NoReturn:
    """Print *message*, a line for each wrong setting; called while the exception is handled, so that -v can
    show where it came from.
    """
    lines = f"holdfast: {message}".split("\n")
    if verbose:
        import traceback

        lines = [*traceback.format_exc().splitlines(), *lines]
    try:
        print(*map(printable, lines), sep="\n", file=sys.stderr, flush=True)
    except OSError:  # no reader is left, or its disk is full: the exit code shows the failure all the same
        _drop(sys.stderr, sys.__stderr__)
    sys.exit(code)


if __name__ == "__main__":
    main()
