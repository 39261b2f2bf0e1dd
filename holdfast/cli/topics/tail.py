"""`holdfast -A shop tail STREAM`: the records of a topic, decoded as the application declares them."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Annotated, Any

import msgspec
import typer
from confluent_kafka import Message

from holdfast.cli.options.application import Application, load_application
from holdfast.cli.options.context import globals_of
from holdfast.cli.output import Cell, Output, json_text
from holdfast.clients.topics.admin import Admin
from holdfast.config.kafka_properties import suggest
from holdfast.core.engine.declared.serdes import Serde, decode_with
from holdfast.core.engine.declared.streams import Stream
from holdfast.core.engine.emits import Headers
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError, TopicError
from holdfast.kafka.clients import reader_options
from holdfast.kafka.reading.log_reader import reading

logger = logging.getLogger(__name__)

WAIT_MS = 100
IDLE_S = 30.0
"""The time without a record after which known records count as unreadable."""

Decode = Callable[[bytes | None, Headers], Any]

app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(help="Print committed records of a topic, decoded as the application declares them.")
def tail(
    context: typer.Context,
    topic: Annotated[
        str, typer.Argument(metavar="STREAM", help="A source or stream of the application, or any topic.")
    ],
    last: Annotated[
        int, typer.Option("--last", min=0, help="How many offsets back to begin, in each partition.")
    ] = 10,
    beginning: Annotated[bool, typer.Option("--beginning", help="Begin with the first record.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new records, until Ctrl-C.")
    ] = False,
    most: Annotated[int | None, typer.Option("--max", "-n", min=1, help="End after so many records.")] = None,
) -> None:
    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    key, value = decoders(application, topic)
    back = None if beginning else last
    for message in islice(records(application, topic, back=back, follow=follow), most):
        told = record_of(message, key, value)
        if chosen.output is Output.JSON:
            typer.echo(json_text(told))
        else:
            typer.echo(
                f"{told['partition']}/{told['offset']}  {told['time']}  {_text(told['key'])} "
                f" {_text(told['value'])}"
            )


def decoders(application: Application, topic: str) -> tuple[Decode, Decode]:
    """Return the decoders of keys and values of *topic*: as some processor declares them, else text, else
    hexadecimal.
    """
    found = dict[str, tuple[Serde[Any], Serde[Any]]]()
    for processor in application.processors:
        for source in processor.on or ():
            found[str(source.topic)] = source.key, source.serde
        for stream in (*processor.emits, processor.source):
            if isinstance(stream, Stream):
                found.setdefault(str(stream), (stream.key, stream.serde))
        for table in processor.reads:
            found.setdefault(str(table.topic), (table.source.key, table.source.serde))
    if topic not in found:
        return _plain, _plain
    key, value = found[topic]
    return partial(decode_with, key), partial(decode_with, value)


def _plain(content: bytes | None, headers: Headers) -> Cell:
    return plain(content)


def plain(content: bytes | None) -> Cell:
    """Return bytes as a person reads them.

    >>> plain(b'{"a": 1}'), plain(b"a b"), plain(bytes([255])), plain(None)
    ({'a': 1}, 'a b', '0xff', None)
    """
    if content is None:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return f"0x{content.hex()}"
    try:
        return json.loads(text) if text[:1] in ("{", "[") else text
    except (ValueError, RecursionError):  # the second where it is nested without end
        return text


def records(application: Application, topic: str, *, back: int | None, follow: bool) -> Iterator[Message]:
    """Yield committed records of *topic*, from *back* offsets before the end of each partition, or from the
    beginning.

    With *follow* there is no end. Raises TopicError for a topic that does not exist, BrokerError if existing
    records do not come.
    """
    settings = application.settings
    admin = Admin(settings)
    counts = admin.partition_counts()
    if topic not in counts:
        raise TopicError(
            f"there is no topic {topic}, or this principal may not see it{suggest(topic, [*counts])}"
        )
    places: list[Place] = [(topic, partition) for partition in range(counts[topic])]
    first = {place: begin for place, (begin, _) in admin.offsets(places).items()}
    ends = admin.stable_offsets(places)
    starts = {
        place: first[place] if back is None else max(first[place], ends[place] - back) for place in places
    }
    config = settings.consumer(**reader_options(f"{settings.app}-tail", committed=True, wait_ms=WAIT_MS))
    with reading(settings, topic, config, logger=logger) as reader:
        reader.assign(starts)
        try:
            yield from reader.until(
                lambda: not follow and reader.has_read(ends), idle_s=float("inf") if follow else IDLE_S
            )
        except TimeoutError as error:
            raise BrokerError(f"topic {topic} was not read to its end: {error}; is a broker away?") from error


def record_of(message: Message, key: Decode, value: Decode) -> dict[str, Cell]:
    """Return one record for people and programs; *error* says why its value is shown as it lies in the
    log.
    """
    headers = tuple((name, _bytes(content)) for name, content in _headers(message))
    told: dict[str, Cell] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "time": _time(message.timestamp()[1]),
        "headers": [[name, plain(content)] for name, content in headers],
    }
    for name, content, decode in (
        ("key", _bytes(message.key()), key),
        ("value", _bytes(message.value()), value),
    ):
        try:
            told[name] = msgspec.to_builtins(decode(content, headers), str_keys=True)
        except Exception as error:  # noqa: BLE001  a user's decoder may raise anything
            told[name] = plain(content)
            told.setdefault("error", f"{name}: {type(error).__name__}: {error}")
    return told


def _headers(message: Message) -> Sequence[tuple[str, str | bytes | None]]:
    found = message.headers() or ()
    return [*found.items()] if isinstance(found, dict) else found  # librdkafka gives a list


def _bytes(content: str | bytes | None) -> bytes | None:
    return content.encode() if isinstance(content, str) else content


def _time(at_ms: int) -> str:
    """Return a timestamp in UTC, as a bare number where calendars do not reach.

    >>> _time(1_700_000_000_123), _time(1 << 62)
    ('2023-11-14T22:13:20.123Z', '@4611686018427387904')
    """
    try:
        return (
            datetime.fromtimestamp(at_ms / 1000, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z")
        )
    except (ValueError, OverflowError, OSError):
        return f"@{at_ms}"


def _text(cell: Cell) -> str:
    """Return a cell on one line; what would move a terminal's cursor is escaped.

    >>> _text("ada"), _text({"a": 1}), _text(None), _text("a" + chr(27))
    ('ada', '{"a": 1}', 'null', '"a\\\\u001b"')
    """
    return cell if isinstance(cell, str) and cell.isprintable() else json_text(cell)
