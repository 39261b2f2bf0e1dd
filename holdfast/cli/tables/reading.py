"""`holdfast tables list | get | scan | windows | watch`: an application's own tables, read from its
workers.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from time import sleep
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli.options.application import Application, load_application
from holdfast.cli.options.asking import TIMEOUT_S, StaleOk, TimeoutOption, staleness
from holdfast.cli.options.context import LAST_PARTITION, globals_of, output_of
from holdfast.cli.output import Cell, Output, escaped_json, note, show
from holdfast.cli.watching import WatchedLooks
from holdfast.clients.tables.answers import Answer, ReachedOffsets
from holdfast.clients.tables.blocking import BlockingTableClient
from holdfast.clients.tables.directory import WorkersTopic
from holdfast.core.claims.resets import parse_datetime_ms
from holdfast.core.engine.declared.global_tables import Global
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.query_wire import AtOffset
from holdfast.core.streams.windowing.rows import WindowResult, why_no_range
from holdfast.errors import ConfigError

PLACES = ("table", "version", "partition", "owner", "standbys", "partial", "stage")
STAGES = {
    "building": "are being built: the version before is read until they have caught up",
    "waiting": (
        "have folded all there is, and wait for partitions of their writers that old workers have: replace"
        " these"
    ),
}
ROWS = ("key", "partition", "as_of_offset", "role", "value")
WINDOWS = ("key", "start", "end", "partition", "as_of_offset", "role", "value")
LIMIT_ROWS = 100

ProcessorArgument = Annotated[
    str,
    typer.Argument(
        metavar="TABLE",
        help="The processor of the table, PROCESSOR.TABLE for a named table, or the name of a global table.",
    ),
]
PartitionOption = Annotated[
    int | None,
    typer.Option("--partition", min=0, max=LAST_PARTITION, help="Ask only this partition of the source."),
]
AtLeastOption = Annotated[
    list[str] | None,
    typer.Option(
        "--at-least",
        metavar="P:OFFSET[@ID]",
        help=(
            "Wait until the answer reflects the source up to this offset of partition P (P:TOPIC:OFFSET where"
            " there are several), of the topic with this id, if given; may be repeated. `reached` of an"
            " answer as JSON has it so."
        ),
    ),
]


LimitOption = Annotated[int, typer.Option("--limit", min=1, max=1_000_000, help="At most this many rows.")]


def add_commands(app: typer.Typer) -> None:
    """Make these commands of *app*."""
    app.command("list", help="List who serves which partition of each table.")(list_tables)
    app.command(help="Print one row with the offset it reflects. Exit code 1 when there is no such row.")(get)
    app.command(help="Print rows whose keys begin with PREFIX, in the order of their keys.")(scan)
    app.command(
        help=(
            "Print windows of KEY, or of all keys, in a table of windows, partition by partition, in the"
            " order of their keys and starts."
        )
    )(windows)
    app.command(help="Print a row now, and again each time it changes, until Ctrl-C.")(watch)


def list_tables(context: typer.Context, timeout: TimeoutOption = TIMEOUT_S) -> None:
    application = _application(context)
    records = asyncio.run(_places(application, timeout))
    show(records, PLACES, output_of(context))
    announced = {(record["table"], record["version"]) for record in records}
    for each in application.processors:
        if not each.stateless and (each.name, each.version) not in announced:
            note(f"no worker has announced {each.name} version {each.version}: start one")
    if partial := sum(record["partial"] is True for record in records):
        note(f"{partial} partitions are partial: records of their sources were deleted before they began")
    for stage, text in STAGES.items():
        if count := sum(record["stage"] == stage for record in records):
            note(f"{count} partitions {text}")
    if unserved := sum(record["owner"] is None for record in records):
        note(f"{unserved} partitions are not served: start workers, or wait until they have restored")


async def _places(application: Application, timeout_s: float) -> list[dict[str, Cell]]:
    directory = WorkersTopic(application.settings)
    try:
        await directory.refresh(timeout_s)
    finally:
        await directory.close()
    workers = directory.workers
    return [
        {
            "table": table,
            "version": each.version,
            "partition": partition,
            "owner": workers.owner(each.name, each.version, partition),
            "standbys": workers.standbys(each.name, each.version, partition),
            "partial": workers.is_partial(each.name, each.version, partition),
            "stage": workers.stage(each.name, each.version, partition),
        }
        for each in application.processors
        for table in _tables_of(each)
        for partition in range(workers.partitions(each.name, each.version) or 0)
    ]


def _tables_of(processor: Processor[Any, Any]) -> list[str]:
    """Return the tables of a processor as they are asked for: its own and its named ones; none of a step."""
    if processor.stateless:
        return []
    return [processor.name, *(f"{processor.name}.{table}" for table in processor.tables)]


def get(
    context: typer.Context,
    processor: ProcessorArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The row's key.")],
    partition: PartitionOption = None,
    at_least: AtLeastOption = None,
    stale_ok: StaleOk = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    bound, written = staleness(stale_ok), _AtLeast.parse(at_least)
    with _asking(context, processor, globals_too=True) as (table, client, source):
        answer = client.get(
            table,
            key,
            partition=partition,
            at_least=written.of(source),
            timeout_s=timeout,
            max_staleness=bound,
        )
    if answer.value is None:
        note(f"{processor} has no row {key!r} (as of {_as_of(answer, ', ')})")
        if answer.routed:
            note(
                f"partition {answer.partition} alone was asked, where the table's route puts this key; if"
                " producers place records by another partitioner, the row lies elsewhere: `holdfast tables"
                f" scan {processor} {key}` asks all partitions"
            )
        raise typer.Exit(1)
    output = output_of(context)
    show([_row(answer, output)], ROWS, output)


def scan(
    context: typer.Context,
    processor: ProcessorArgument,
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="The prefix of the keys.")] = "",
    limit: LimitOption = LIMIT_ROWS,
    partition: PartitionOption = None,
    at_least: AtLeastOption = None,
    stale_ok: StaleOk = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    bound, written, output = staleness(stale_ok), _AtLeast.parse(at_least), output_of(context)
    with _asking(context, processor, globals_too=True) as (table, client, source):
        answers = client.scan(
            table,
            prefix,
            partition=partition,
            at_least=written.of(source),
            timeout_s=timeout,
            max_staleness=bound,
            page_rows=min(limit + 1, 1_000),
        )
        found = list(islice(answers, limit + 1))
    show([_row(each, output) for each in found[:limit]], ROWS, output)
    if len(found) > limit:
        note(f"there are more than {limit} rows: ask for a longer prefix, or for more with --limit")


def windows(
    context: typer.Context,
    processor: ProcessorArgument,
    key: Annotated[
        str | None, typer.Argument(metavar="[KEY]", help="The key of the windows; without it, all keys.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Only windows that start at or after this: 2026-11-21T08:30:00Z, or ms since 1970.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TIME", help="Only windows that start before this.")
    ] = None,
    limit: LimitOption = LIMIT_ROWS,
    partition: PartitionOption = None,
    at_least: AtLeastOption = None,
    stale_ok: StaleOk = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    bound, written, output = staleness(stale_ok), _AtLeast.parse(at_least), output_of(context)
    since_ms, until_ms = _moment("--since", since), _moment("--until", until)
    if (why := why_no_range(since_ms, until_ms)) is not None:
        raise ConfigError(f"--since {since or 'not given'}, --until {until or 'not given'}: {why}")
    with _asking(context, processor) as (table, client, source):
        answers = client.windows(
            table,
            key,
            since_ms=since_ms,
            until_ms=until_ms,
            partition=partition,
            at_least=written.of(source),
            timeout_s=timeout,
            max_staleness=bound,
            page_rows=min(limit + 1, 1_000),
        )
        found = list(islice(answers, limit + 1))
    show([_window(each, output) for each in found[:limit]], WINDOWS, output)
    if len(found) > limit:
        note(f"there are more than {limit} windows: ask for a shorter time, or for more with --limit")


def _moment(option: str, text: str | None) -> int | None:
    """Read a time: ms since 1970, or as `parse_datetime_ms` does."""
    if text is None or re.fullmatch("-?[0-9]{1,18}", text):
        return None if text is None else int(text)
    try:
        return parse_datetime_ms(text)
    except ConfigError as error:
        raise ConfigError(f"{option}: {error}") from None


def watch(
    context: typer.Context,
    processor: ProcessorArgument,
    key: Annotated[str, typer.Argument(metavar="KEY", help="The row's key.")],
    every: Annotated[
        float, typer.Option("--every", min=0.1, max=3600, help="Seconds between two queries.")
    ] = 1.0,
    partition: PartitionOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    before: object = _Unseen
    looks = WatchedLooks()
    with _asking(context, processor, globals_too=True) as (table, client, _):
        while True:
            answer = looks.take(lambda: client.get(table, key, partition=partition, timeout_s=timeout))
            if answer is not None and answer.value != before:
                before = answer.value
                text = "no row" if before is None else _json(before)
                typer.echo(f"{_as_of(answer)}  {text}")
            sleep(every)


class _Unseen:
    """A value that equals no row."""


@contextmanager
def _asking(
    context: typer.Context, name: str, *, globals_too: bool = False
) -> Iterator[tuple[str | Global[Any], BlockingTableClient, str]]:
    """Open a client; yield the table as it is asked for, the client, and the table's source, or the first."""
    application = _application(context)
    of, dot, table = name.partition(".")
    if globals_too and all(each.name != of for each in application.processors):
        # Below, an unknown name is reported as one of a processor.
        for reader in application.processors:
            for read in reader.reads:
                if read.name == name:
                    with BlockingTableClient(application.settings, [reader]) as client:
                        yield read, client, read.topic
                    return
    processor = application.processor(of)
    if dot:
        processor.row_of(table or name)  # raises for one that is not declared
    with BlockingTableClient(application.settings, [processor]) as client:
        yield name, client, processor.topics[0]


def _application(context: typer.Context) -> Application:
    chosen = globals_of(context)
    return load_application(chosen.application, chosen.settings())


class _AtLeast(msgspec.Struct, frozen=True):
    """The offsets that an answer must reflect, as given: by partition, or by partition and topic, with the
    ids of the topics; "" is the only source of a table.
    """

    offsets: dict[int, AtOffset]
    topic_ids: dict[str, str]

    @classmethod
    def parse(cls, texts: list[str] | None) -> _AtLeast:
        """Read PARTITION:OFFSET and, for tables of several sources, PARTITION:TOPIC:OFFSET; each may end with
        @ID.
        """
        found, by_topic = cls({}, {}), dict[int, dict[str, int]]()
        for text in texts or ():
            parsed = _WRITTEN.fullmatch(text)
            if parsed is None:
                raise ConfigError(
                    f"--at-least {text}: write PARTITION:OFFSET, as a producer is told when it has written,"
                    " or PARTITION:TOPIC:OFFSET for a table of several sources; add @ID for the topic's id"
                )
            partition, topic, offset = int(parsed["partition"]), parsed["topic"] or "", int(parsed["offset"])
            if topic:
                by_topic.setdefault(partition, {})[topic] = offset
            else:
                found.offsets[partition] = offset
            if (topic_id := parsed["id"]) is not None and found.topic_ids.setdefault(
                topic, topic_id
            ) != topic_id:
                raise ConfigError(
                    f"--at-least {text}: another one has the id {found.topic_ids[topic]}; offsets are of one"
                    " topic"
                )
        found.offsets.update(by_topic)
        return found

    def of(self, source: str) -> ReachedOffsets | None:
        """Return them as a client takes them, for a table of *source*."""
        if not self.offsets:
            return None
        return ReachedOffsets(
            self.offsets, {topic or source: found for topic, found in self.topic_ids.items()}
        )


_WRITTEN = re.compile(
    "(?P<partition>[0-9]+):(?:(?P<topic>.+):)?(?P<offset>[0-9]+)(?:@(?P<id>[a-zA-Z0-9+/=_-]{1,64}))?"
)


def _reached(answer: Answer[Any]) -> list[Cell]:
    """Return how far an answer is true, as `--at-least` takes it."""
    reached, found = answer.reached, list[Cell]()
    for partition, offsets in sorted(reached.offsets.items()):
        for topic, offset in [("", offsets)] if isinstance(offsets, int) else sorted(offsets.items()):
            ids = list(reached.topic_ids.values()) if not topic else [reached.topic_ids.get(topic, "")]
            text = f"{topic}:{offset}" if topic else f"{offset}"
            found.append(f"{partition}:{text}@{ids[0]}" if any(ids) else f"{partition}:{text}")
    return found


def _row(answer: Answer[Any], output: Output) -> dict[str, Cell]:
    value: Cell = (
        _json(answer.value) if output is Output.TABLE else msgspec.to_builtins(answer.value, str_keys=True)
    )
    if answer.role == "copy":
        positions: Cell = {str(partition): offset for partition, offset in answer.positions.items()}
        as_of: dict[str, Cell] = (
            {"partition": None, "as_of_offset": _as_of(answer)}
            if output is Output.TABLE
            else {"partition": None, "as_of_offset": answer.as_of_offset, "positions": positions}
        )
    else:
        as_of = {"partition": answer.partition, "as_of_offset": answer.as_of_offset}
    if output is not Output.TABLE:
        as_of["reached"] = _reached(answer)
    return {"key": answer.key, **as_of, "role": str(answer.role), "value": value}


def _as_of(answer: Answer[Any], between: str = ",") -> str:
    """Return how far an answer is true, as PARTITION:OFFSET of each partition that was asked."""
    return between.join(f"{number}:{offset}" for number, offset in sorted(answer.positions.items()))


def _window(answer: Answer[WindowResult[Any]], output: Output) -> dict[str, Cell]:
    window = answer.value
    times: dict[str, Cell] = (
        {"start": _utc(window.start_ms), "end": _utc(window.end_ms)}
        if output is Output.TABLE
        else {"start_ms": window.start_ms, "end_ms": window.end_ms}
    )
    row = _row(msgspec.structs.replace(answer, value=window.value), output)
    return {**row, "key": window.key, **times}


def _utc(at_ms: int) -> str:
    """Return a time as people read it, in ms where calendars do not reach.

    >>> _utc(1_700_000_000_250), _utc(10**15 - 1)
    ('2023-11-14T22:13:20.250Z', '999999999999999')
    """
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%S}.{at_ms % 1000:03d}Z"
    except (ValueError, OverflowError, OSError):
        return str(at_ms)


def _json(row: Any) -> str:
    """Return a row as JSON, bytes in base64."""
    plain = msgspec.to_builtins(row, str_keys=True)
    try:
        return escaped_json(msgspec.json.encode(plain).decode())
    except UnicodeEncodeError:  # a lone surrogate
        return escaped_json(json.dumps(plain, ensure_ascii=False, separators=(",", ":")))
