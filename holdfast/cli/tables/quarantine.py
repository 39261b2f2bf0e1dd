"""`holdfast quarantine`: lists refused records with their reasons, and retries them; skips unreadable
batches.
"""

from __future__ import annotations

import base64
import codecs
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from holdfast.cli.command_group import CommandGroup
from holdfast.cli.options.application import Application, load_application
from holdfast.cli.options.context import globals_of, output_of
from holdfast.cli.options.executing import ExecuteOption
from holdfast.cli.output import Cell, Output, OutputRow, note, show, show_json
from holdfast.cli.tables.quarantine_skips import register_skips
from holdfast.clients.quarantine.records import (
    MADE_AGAIN,
    TIMEOUT_S,
    Quarantine,
    QuarantinedRecord,
    SkippedBatch,
    cannot_retry,
)
from holdfast.errors import ConfigError, QuarantineError

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode=None, add_completion=False)
register_skips(app)

LIMIT_SHOWN = 400
LIMIT_REASON = 80

TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.1, max=600, help="Longest wait without progress, in seconds.")
]
Of = Annotated[str | None, typer.Option("--processor", help="Only what this processor refused.")]
From = Annotated[str | None, typer.Option("--topic", help="Only records of this topic.")]


def _open(context: typer.Context, timeout_s: float) -> tuple[Application, Quarantine]:
    chosen = globals_of(context)
    application = load_application(chosen.application, chosen.settings())
    return application, Quarantine(application.settings, timeout_s=timeout_s)


@app.command(
    "list", help="List refused records, oldest first, each with its coordinates, processor and reason."
)
def list_records(
    context: typer.Context,
    processor: Of = None,
    topic: From = None,
    still_open: Annotated[bool, typer.Option("--open", help="Only records that were not retried.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many, the newest.")] = 1_000,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    _, quarantine = _open(context, timeout)
    records = quarantine.records(lambda record: _matches(record, processor, topic), limit=limit)
    shown = [record for record in records if not still_open or record.retried_to is None]
    output = output_of(context)
    columns = (
        "coordinates",
        "last",
        "stage",
        "error",
        "reason",
        "key",
        "size_bytes",
        "quarantined_at",
        "retried_to",
    )
    show(
        [_record(record) if output is Output.JSON else _for_people(record) for record in shown],
        columns,
        output,
    )
    if not shown:
        note(f"no quarantined records in {quarantine.topic}")
    elif len(records) == limit:
        note(f"only the newest {limit} were looked at; see --limit")


def _matches(record: QuarantinedRecord, processor: str | None, topic: str | None) -> bool:
    return processor in (None, record.processor) and topic in (None, record.topic)


@app.command("show", help="Show one refused record in full: key, headers, value and reason.")
def show_record(
    context: typer.Context,
    coordinates: Annotated[str, typer.Argument(metavar="TOPIC/PARTITION/OFFSET[/PROCESSOR]")],
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    _, quarantine = _open(context, timeout)
    found = quarantine.records(lambda record: record.is_named(coordinates), values=True)
    if not found:
        raise _unknown([coordinates], quarantine)
    if output_of(context) is Output.JSON:
        show_json([_whole(record) for record in found])
        return
    for record in found:
        show(
            [
                {"name": name.replace("_", "-"), "value": cell}
                for name, cell in _whole_for_people(record).items()
            ],
            ("name", "value"),
            Output.TABLE,
        )


@app.command(
    help=(
        "Send refused records to their partition again, as they were, with the header holdfast-retry-of."
        " Without --execute, only print what would be sent. Fix the decoder or fold first, or they are"
        " refused again."
    )
)
def retry(
    context: typer.Context,
    coordinates: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC/PARTITION/OFFSET[/PROCESSOR]]...")
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Every record that was not retried yet; --processor and --topic narrow it."
        ),
    ] = False,
    processor: Of = None,
    topic: From = None,
    execute: ExecuteOption = False,
    again: Annotated[bool, typer.Option("--again", help="Also records that were retried before.")] = False,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="Also records that other processors of the topic accepted; these would get them twice.",
        ),
    ] = False,
    made_again: Annotated[
        bool,
        typer.Option("--made-again", help="Also records of topics that were deleted and made again since."),
    ] = False,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    if everything == bool(coordinates):
        raise ConfigError(
            "name records by their coordinates, or all of them with --all; `holdfast quarantine list` shows"
            " them"
        )
    application, quarantine = _open(context, timeout)
    chosen = _choose(quarantine, coordinates, processor, topic)
    skipped = next((record for record in chosen if coordinates and record.batch is not None), None)
    if skipped is not None and skipped.batch is not None:
        raise QuarantineError(f"{skipped.coordinates}: {cannot_retry(skipped.batch)}")
    others = frozenset() if made_again else quarantine.of_others(chosen)
    plan = [
        (
            record,
            MADE_AGAIN
            if record.coordinates in others
            else _objection(record, chosen, application, again=again, shared=shared),
        )
        for record in chosen
    ]
    sendable = [record for record, objection in plan if objection is None]
    sent: dict[str, str] = {}
    if execute:
        for record, copy in quarantine.retry(sendable, made_again=made_again):
            sent[record.coordinates] = copy
    records: list[OutputRow] = [
        {
            "coordinates": record.coordinates,
            "size_bytes": record.size_bytes,
            "action": "kept" if objection else "sent" if execute else "would send",
            "copy": sent.get(record.coordinates),
            "why": objection,
        }
        for record, objection in plan
    ]
    show(records, ("action", "coordinates", "size_bytes", "copy", "why"), output_of(context))
    if not execute and sendable:
        note(
            f"nothing was sent; add --execute to send {len({record.place for record in sendable})} record(s)"
        )
    if not sendable:
        note("nothing to retry")


def _choose(
    quarantine: Quarantine, coordinates: Sequence[str] | None, processor: str | None, topic: str | None
) -> list[QuarantinedRecord]:
    """Return the records meant, and with each all others refused at its offset: a copy retries all of
    them.
    """
    everywhere = quarantine.records(lambda record: True)
    meant = [
        record
        for record in everywhere
        if (not coordinates or any(record.is_named(each) for each in coordinates))
        and _matches(record, processor, topic)
    ]
    missing = [each for each in coordinates or () if not any(record.is_named(each) for record in meant)]
    if missing:
        raise _unknown(missing, quarantine)
    places = {record.place for record in meant}
    return [record for record in everywhere if record.place in places]


def _unknown(coordinates: Collection[str], quarantine: Quarantine) -> QuarantineError:
    return QuarantineError(
        f"{quarantine.topic} holds no {', '.join(coordinates)}; `holdfast quarantine list` shows them"
    )


def _objection(
    record: QuarantinedRecord,
    chosen: Sequence[QuarantinedRecord],
    application: Application,
    *,
    again: bool,
    shared: bool,
) -> str | None:
    """Return why a record should stay where it is, None when nothing speaks against sending it."""
    if record.batch is not None:
        return cannot_retry(record.batch)
    if record.stage == "tick":
        return (
            "it is a timer that failed at a tick, and no record: mend on_tick, and raise the version for it"
            " to be called again"
        )
    if record.stage == "close":
        return (
            "it is a result that could not be sent when its time came, and no record: mend encode or join,"
            " and raise the version for it to be sent"
        )
    if record.retried_to is not None and not again:
        return f"retried before as {record.retried_to}; --again sends another copy"
    refused_by = {each.processor for each in chosen if each.place == record.place}
    others = sorted(
        each.name
        for each in application.processors
        if record.topic in each.topics and each.name not in refused_by
    )
    if others and not shared:
        return f"{', '.join(others)} took it already and would get it twice; --shared sends it all the same"
    return None


# -- how a record is shown


def _record(record: QuarantinedRecord) -> dict[str, Cell]:
    return {
        "coordinates": record.coordinates,
        "processor": record.processor,
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "last": None if record.batch is None else record.batch.last,
        "stage": record.stage,
        "error": record.error,
        "reason": record.reason,
        "calls": record.calls or None,
        "key": _text(record.key, LIMIT_SHOWN),
        "size_bytes": record.size_bytes,
        "truncated": record.truncated_bytes is not None,
        "appended_at_ms": record.appended_ms,
        "quarantined_at_ms": record.at_ms,
        "retried_to": record.retried_to,
        "batch": None if record.batch is None else _batch(record.batch),
    }


def _batch(batch: SkippedBatch) -> dict[str, Cell]:
    return {
        "codec": batch.codec,
        "size_bytes": batch.size_bytes,
        "records": None if batch.records_count < 0 else batch.records_count,
        "producer": batch.producer,
    }


def _for_people(record: QuarantinedRecord) -> dict[str, Cell]:
    reason = " ".join(record.reason.split())
    short = reason if len(reason) <= LIMIT_REASON else reason[: LIMIT_REASON - 1] + "…"
    return {
        **_record(record),
        "reason": short,
        "key": _text(record.key, 40),
        "quarantined_at": _at(record.at_ms),
    }


def _whole(record: QuarantinedRecord) -> dict[str, Cell]:
    return {
        **_record(record),
        "key_base64": _base64(record.key),
        "value": _text(record.value, LIMIT_SHOWN),
        "value_base64": _base64(record.value),
        "headers": [
            [name, None if value is None else _text(value, LIMIT_SHOWN)] for name, value in record.headers
        ],
    }


def _whole_for_people(record: QuarantinedRecord) -> dict[str, Cell]:
    shown = {name: cell for name, cell in _whole(record).items() if not name.endswith(("_base64", "_at_ms"))}
    headers: dict[str, Cell] = {name: _text(value, LIMIT_SHOWN) for name, value in record.headers}
    value: Cell = (
        f"({record.truncated_bytes} bytes, too large to be kept)"
        if record.truncated_bytes is not None
        else shown["value"]
    )
    if record.batch is not None:
        value = "(a batch that cannot be read)"
    return {
        **shown,
        "value": value,
        "headers": headers,
        "appended_at": _at(record.appended_ms),
        "quarantined_at": _at(record.at_ms),
    }


def _text(value: bytes | None, limit: int) -> str | None:
    """Return bytes as people can read them: text where it is text, else hex; cut where it is long.

    >>> _text(b"order-1", 40), _text(b"\\xff\\x00", 40), _text(None, 40), _text(b"x" * 50, 5)
    ('order-1', '0xff00', None, 'xxxxx…')
    """
    if value is None:
        return None
    try:
        # Cut before it is read, and perhaps in the middle of a character.
        shown = codecs.getincrementaldecoder("utf-8")().decode(
            value[: limit * 4], final=len(value) <= limit * 4
        )
        readable = shown.isprintable()
    except UnicodeDecodeError:
        readable = False
    if not readable:
        shown = "0x" + value[:limit].hex()
    return shown if len(shown) <= limit else shown[:limit] + "…"


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _at(at_ms: int) -> str | None:
    return (
        None
        if at_ms < 0
        else datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
    )
