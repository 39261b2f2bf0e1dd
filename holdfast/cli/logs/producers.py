"""`holdfast producers`: the registered producers and their ledgers, read from the workers' tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from holdfast.cli.command_group import CommandGroup
from holdfast.cli.logs import broker_logs, hanging
from holdfast.cli.options.application import load_application
from holdfast.cli.options.context import globals_of, output_of
from holdfast.cli.output import Cell, Output, note, show, show_json, utc_ms
from holdfast.clients.tables.answers import Answer
from holdfast.clients.tables.blocking import BlockingTableClient
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.outbox.progress import Reached
from holdfast.core.producers.ledger import Book, BookRow, Totals, book_key, producer_of_key
from holdfast.core.producers.registry import Registration, name_key
from holdfast.errors import ConfigError

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode=None, add_completion=False)
broker_logs.register_transactions(app)
hanging.register_hanging(app)

TIMEOUT_S = 10.0
COLUMNS = (
    *("producer", "topic", "partition", "epoch", "last_sequence", "records"),
    *("missing", "gaps", "late", "duplicates", "zombies", "restarts", "last_at", "trouble"),
)
BOOK_FIELDS = (
    *(
        "producer",
        "topic",
        "partition",
        "epoch",
        "last_sequence",
        "last_offset",
        "last_at_ms",
        "records",
        "first_sequence",
        "first_offset",
    ),
    *(
        "missing",
        "holes",
        "gaps",
        "late",
        "duplicates",
        "doubtful",
        "zombies",
        "restarts",
        "trouble",
        "as_of_offset",
        "role",
    ),
)
"""The fields of every book in JSON; None where it is unknown."""

TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.1, max=600, help="Longest wait for a reply, in seconds.")
]
TopicOption = Annotated[str | None, typer.Option("--topic", help="Only this topic.")]


@dataclass(slots=True)
class _ProducerTables:
    """The tables that know of producers, in the application asked about."""

    settings: Settings
    books: list[Processor[Any, BookRow]]
    names: list[Processor[Any, Registration]]
    outboxes: list[Processor[Any, Reached]]
    tables: BlockingTableClient
    timeout_s: float

    def of_topic(self, topic: str | None) -> list[Processor[Any, BookRow]]:
        """Return the books of *topic*, or all; ConfigError if there are none."""
        found = [each for each in self.books if topic in (None, *each.topics)]
        if topic is not None and not found:
            kept = ", ".join(sorted(each.topics[0] for each in self.books)) or "none"
            raise ConfigError(
                f"no ledger for {topic}; ledgers exist for: {kept}. Set `books` or `dedupe` for the workers"
            )
        return found

    def scan(self, processor: Processor[Any, Any], prefix: str = "") -> Iterator[Answer[Any]]:
        return self.tables.scan(processor, prefix, timeout_s=self.timeout_s)


def _sources(context: typer.Context, timeout_s: float) -> _ProducerTables:
    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    books = [each for each in application.processors if each.row == BookRow]
    names = [each for each in application.processors if each.row is Registration]
    outboxes = [each for each in application.processors if each.row is Reached]
    if not books and not names:
        raise ConfigError(
            f"application {application.settings.app} keeps no ledgers of producers: set `books`, `dedupe` or"
            " `registry` as for its workers, or name your own application with -A"
        )
    tables = BlockingTableClient(application.settings, [*books, *names, *outboxes])
    return _ProducerTables(application.settings, books, names, outboxes, tables, timeout_s)


def _record(answer: Answer[Any], topic: str) -> dict[str, Cell]:
    book = answer.value
    assert isinstance(book, Book)
    faults = book.faults
    trouble = faults.trouble
    return {
        "producer": producer_of_key(answer.key),
        "topic": topic,
        "partition": answer.partition,
        "epoch": book.epoch,
        "last_sequence": book.last_sequence,
        "last_offset": book.last_offset,
        "last_at_ms": book.last_at_ms,
        "records": book.records,
        "first_sequence": book.first_sequence,
        "first_offset": book.first_offset,
        "missing": faults.missing,
        "holes": [[hole.first, hole.last] for hole in faults.holes],
        "gaps": faults.gaps,
        "late": faults.late,
        "duplicates": faults.duplicates,
        "doubtful": faults.doubtful,
        "zombies": faults.zombies,
        "restarts": faults.restarts,
        "trouble": (
            None
            if trouble is None
            else {
                "kind": trouble.kind.value,
                "offset": trouble.offset,
                "at_ms": trouble.at_ms,
                "epoch": trouble.epoch,
                "sequence": trouble.sequence,
            }
        ),
        "as_of_offset": answer.as_of_offset,
        "role": answer.role,
    }


def _for_people(record: dict[str, Cell]) -> dict[str, Cell]:
    at_ms, trouble = record["last_at_ms"], record["trouble"]
    trouble_at = f"{trouble['kind']} at {trouble['offset']}" if isinstance(trouble, dict) else None
    return {**record, "last_at": utc_ms(at_ms), "trouble": trouble_at}


@app.command(
    "list",
    help=(
        "List the producers of stamped topics: epoch, last sequence, and counts of missing, late, repeated"
        " and zombie records."
    ),
)
def list_producers(
    context: typer.Context,
    topic: TopicOption = None,
    trouble: Annotated[
        bool,
        typer.Option("--trouble", help="Only producers with missing, repeated, doubtful or zombie records."),
    ] = False,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    sources, output = _sources(context, timeout), output_of(context)
    records, unstamped = list[dict[str, Cell]](), dict[str, int]()
    with sources.tables:
        for processor in sources.of_topic(topic):
            for answer in sources.scan(processor):
                if isinstance(answer.value, Totals):
                    unstamped[processor.topics[0]] = (
                        unstamped.get(processor.topics[0], 0) + answer.value.unstamped
                    )
                elif not trouble or _is_troubled(answer.value):
                    records.append(_record(answer, processor.topics[0]))
    records.sort(key=lambda each: (str(each["producer"]), str(each["topic"]), int(str(each["partition"]))))
    show(records if output is Output.JSON else [_for_people(each) for each in records], COLUMNS, output)
    for source, count in sorted(unstamped.items()):
        if count:
            note(f"{source}: {count} records without a stamp")
    if not records:
        note("no producer is in trouble" if trouble else "no stamped record has come")


def _is_troubled(book: Book) -> bool:
    faults = book.faults
    return bool(faults.missing or faults.duplicates or faults.doubtful or faults.zombies)


@app.command(
    "show",
    help=(
        "Show one producer: its registration, its ledgers by topic and partition, and the progress of its"
        " outbox."
    ),
)
def show_producer(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    topic: TopicOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    sources, output = _sources(context, timeout), output_of(context)
    with sources.tables:
        registered = _registration(sources, name)
        records = [
            _record(answer, processor.topics[0])
            for processor in sources.of_topic(topic)
            for answer in sources.scan(processor, book_key(name))
            if answer.key == book_key(name)
        ]
        progress = [
            _progress(answer)
            for processor in sources.outboxes
            for answer in sources.scan(processor)
            if answer.key.split("/", 2)[2] == name and topic in (None, answer.key.split("/", 1)[0])
        ]
    if registered is None and not records and not progress:
        note(f"nobody has registered {name}, and no record of it has come")
        raise typer.Exit(1)
    if output is Output.JSON:
        show_json(
            {
                "producer": name,
                "registration": registered,
                "ledger": list(records),
                "books": list(records),  # its old name
                "outbox": list(progress),
            }
        )
        return
    if registered is not None:
        show(
            [{"name": key.replace("_", "-"), "value": value} for key, value in registered.items()],
            ("name", "value"),
            output,
        )
        print()
    show([_for_people(each) for each in records], COLUMNS[1:], output)
    for each in records:
        if each["holes"]:
            note(f"{each['topic']}/{each['partition']} misses {_ranges(each['holes'])}")
    if progress:
        print()
        show(progress, ("topic", "partition", "epoch", "last_sequence", "zombies", "backward"), output)


def _registration(sources: _ProducerTables, name: str) -> dict[str, Cell] | None:
    for processor in sources.names:
        held = sources.tables.get(processor, name_key(name), timeout_s=sources.timeout_s).value
        if isinstance(held, Registration):
            return {
                "name": name,
                "producer_id": held.producer_id,
                "epoch": held.epoch,
                "instance": held.instance or None,
                "since": utc_ms(held.at_ms),
                "first_registered": utc_ms(held.first_at_ms),
                "fenced": held.fenced,
            }
    return None


def _progress(answer: Answer[Any]) -> dict[str, Cell]:
    row = answer.value
    assert isinstance(row, Reached)
    topic, partition, _ = answer.key.split("/", 2)
    return {
        "topic": topic,
        "partition": int(partition),
        "epoch": row.epoch,
        "last_sequence": row.last_sequence,
        "zombies": row.zombies,
        "backward": row.backward,
    }


def _ranges(holes: Cell) -> str:
    """Return ranges of sequences as people write them.

    >>> _ranges([[4, 4], [7, 9]])
    '4, 7-9'
    """
    assert isinstance(holes, list)
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in holes)
