"""`holdfast tables`: reads an application's tables from its workers, and repairs changelogs to which another
program wrote.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.command_group import CommandGroup
from holdfast.cli.options.application import load_application, load_function
from holdfast.cli.options.context import globals_of, output_of
from holdfast.cli.options.executing import ExecuteOption
from holdfast.cli.output import Cell, Output, note, show, show_json
from holdfast.cli.tables.reading import add_commands
from holdfast.cli.tables.switching import switch
from holdfast.core.engine.state.codec import EVENT, META, NAMED, ROW, TICK, WAKE
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.cli.tables.mending import Mender, MendingStep
    from holdfast.cli.tables.taking import TakenPartition
    from holdfast.core.engine.merge.strays import Stray
    from holdfast.core.engine.positions import NamedOffsets

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode=None, add_completion=False)
add_commands(app)
app.command(
    help=(
        "Show which version of a table is current, or make another one current: clients that know both ask"
        " that one."
    )
)(switch)

COLUMNS = ("partition", "offset", "kind", "key", "producer_id", "why")
_KINDS = {
    META: "bookkeeping",
    WAKE: "timer",
    ROW: "row",
    TICK: "timer of ticks",
    NAMED: "row of a named table",
    EVENT: "timer of event time",
}


@app.command(
    help=(
        "Show the records of a table's changelog that no worker wrote, and the records that would repair it;"
        " with --execute, write them. Stop all workers of the application first. Exit code 1 while something"
        " is left to repair."
    )
)
def repair(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="PROCESSOR", help="The processor of the table.")],
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", metavar="P", help="Only this partition; may be repeated."),
    ] = None,
    applied: Annotated[
        list[str] | None,
        typer.Option(
            "--applied",
            metavar="P:OFFSET",
            help=(
                "Continue after this source offset (of several sources P:TOPIC:OFFSET), in the state of a"
                " replay up to it."
            ),
        ),
    ] = None,
    rebuild: Annotated[
        bool,
        typer.Option(
            "--rebuild",
            help="Empty the table: the next worker folds the source from its beginning, and emits again.",
        ),
    ] = False,
    execute: ExecuteOption = False,
) -> None:
    from holdfast.cli.tables.mending import Mender, require_stopped

    places = _places(applied)
    if rebuild and places:
        raise ConfigError(
            "--rebuild and --applied: one begins anew, the other goes on from an offset; choose one"
        )
    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    mender = Mender(application.processor(name), application.settings)
    wanted = mender.partitions(partition or (sorted(places) if places else None))
    if places.keys() - set(wanted):
        raise ConfigError(
            f"--applied {min(places.keys() - set(wanted))}:…: that partition is not among those of"
            " --partition"
        )
    if execute:
        require_stopped(application.settings, application.settings.app)
    done: list[MendingStep] = []
    for each in wanted:
        if execute:
            done.append(asyncio.run(mender.write(each, rebuild=rebuild, applied=places.get(each))))
        else:
            found = asyncio.run(mender.look(each))
            done.append(
                mender.plan_rebuild(each, found) if rebuild else mender.plan(each, found, places.get(each))
            )
    _tell(mender, name, done, output_of(context), executed=execute)
    if not execute and any(step.changes is not None for step in done):
        raise typer.Exit(1)


@app.command(
    "take-over",
    help=(
        "Begin a processor's table with the state of a Faust application: the rows of one of its tables, and"
        " its group's offsets in the processor's source. Stop all workers of both first; with --execute,"
        " write it."
    ),
)
def take_over(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="PROCESSOR", help="The processor whose table it is.")],
    table: Annotated[
        str | None,
        typer.Option(
            "--table", metavar="NAME", help="The Faust table; without it only the position is taken over."
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            "--rows",
            metavar="MODULE:FUNCTION",
            help=(
                "Function that turns a key and a value of the Faust table into a key and a row, or None to"
                " leave it out."
            ),
        ),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The function gets bytes, not decoded JSON.")] = False,
    from_app: Annotated[
        str | None,
        typer.Option(
            "--from-app", metavar="ID", help="The Faust application's id, if it is not that of this one."
        ),
    ] = None,
    execute: ExecuteOption = False,
) -> None:
    from holdfast.cli.tables.mending import require_stopped
    from holdfast.cli.tables.taking import FaustTakeover, OldTable

    if (table is None) != (rows is None):
        raise ConfigError("--table and --rows belong together: name the old table, and what makes rows of it")
    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    settings = application.settings
    old = None if table is None or rows is None else OldTable(name=table, rows=load_function(rows), raw=raw)
    group = from_app or settings.app
    takeover = FaustTakeover(application.processor(name), settings, group=group, table=old)
    if execute:
        for each in sorted({group, settings.app}):
            require_stopped(settings, each)
    taken = takeover.plan()
    for part in taken if execute else ():
        if not part.done:  # by a run of this command that came to no end
            asyncio.run(takeover.write(part))
    _show_taken(name, taken, execute, output_of(context))


def _show_taken(name: str, taken: Sequence[TakenPartition], execute: bool, output: Output) -> None:
    found: list[dict[str, Cell]] = [
        {
            "partition": each.partition,
            "rows": len(each.beginning.stored),
            "applied": each.beginning.base.place,
        }
        for each in taken
    ]
    if output is Output.JSON:
        show_json({"processor": name, "executed": execute, "partitions": found})
        return
    show(found, ("partition", "rows", "applied"), output)
    note(
        "start the workers"
        if execute
        else "nothing was written; stop all workers and give --execute to do it"
    )


def _places(applied: list[str] | None) -> dict[int, NamedOffsets]:
    out: dict[int, NamedOffsets] = {}
    by_topic: dict[int, dict[str, int]] = {}
    for text in applied or ():
        found = re.fullmatch(r"(\d+):(?:([A-Za-z0-9._-]+):)?(-1|\d+)", text)
        if found is None:
            raise ConfigError(
                f"--applied {text}: write PARTITION:OFFSET, the last source offset that counts, -1 for none;"
                " of several sources PARTITION:TOPIC:OFFSET"
            )
        partition, topic, last = int(found[1]), found[2], int(found[3])
        if topic is None:
            out[partition] = last
        else:
            by_topic.setdefault(partition, {})[topic] = last
    return {**out, **by_topic}


def _tell(mender: Mender, name: str, done: list[MendingStep], output: Output, *, executed: bool) -> None:
    strays = [_stray(step.partition, each) for step in done for each in step.findings.strays]
    steps: list[dict[str, Cell]] = [
        {
            "partition": step.partition,
            "strays": len(step.findings.strays),
            "how": step.how,
            "applied": None if step.changes is None else mender.applied_of(step.changes.marker),
            "keys": 0 if step.changes is None else len(step.changes.puts),
        }
        for step in done
    ]
    if output is Output.JSON:
        show_json({"processor": name, "executed": executed, "strays": strays, "partitions": steps})
        return
    show(strays, COLUMNS, output)
    for each in done:
        if each.changes is None:
            note(f"partition {each.partition}: {each.how}")
        else:
            verb, reached = "was" if executed else "would be", mender.reached(each.changes.marker)
            note(
                f"partition {each.partition}: {verb} {each.how}, {len(each.changes.puts)} keys; goes on after"
                f" source offset {reached}"
            )
    if any(step.changes is not None for step in done):
        note(
            f"start the workers, then `holdfast verify {name}`"
            if executed
            else "nothing was written; stop all workers and give --execute to do it"
        )


def _stray(partition: int, stray: Stray) -> dict[str, Cell]:
    key = stray.key
    return {
        "partition": partition,
        "offset": stray.offset,
        "kind": None if key is None else _KINDS.get(key[:1], "unknown"),
        "key": None if key is None else _shown(key) if key[:1] in _KINDS else key.hex(),
        "value_bytes": None if stray.value is None else len(stray.value),
        "producer_id": stray.producer_id,
        "why": stray.why,
    }


def _shown(key: bytes) -> str:
    """Return a key for people, a named table's with the name before it.

    >>> _shown(b"\\x02ada"), _shown(b"\\x04sessions\\x00ada")
    ('ada', 'sessions: ada')
    """
    text = key[1:].decode(errors="backslashreplace")
    return text.replace("\x00", ": ", 1) if key[:1] == NAMED else text
