"""`holdfast producers hanging`: lists transactions whose ends the brokers have lost, and writes their
recorded outcome.
"""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from holdfast.cli.options.context import output_of, settings_of
from holdfast.cli.output import Cell, note, show, utc
from holdfast.config import Settings
from holdfast.core.broker_logs.lost_ends import LostEnd
from holdfast.errors import BrokerError

COLUMNS = (
    "topic",
    "partition",
    "offset",
    "producer_id",
    "epoch",
    "transactional_id",
    "decided",
    "decided_at",
)


def _record(lost: LostEnd) -> dict[str, Cell]:
    each, how = lost.transaction, lost.decided
    return {
        "topic": each.topic,
        "partition": each.partition,
        "offset": each.first_offset,
        "producer_id": each.producer_id,
        "epoch": each.epoch,
        "transactional_id": None if how is None else how.transactional_id,
        "decided": None if how is None else "commit" if how.commit else "abort",
        "decided_at": None if how is None else utc(how.at_ms // 1000),
    }


async def _find(settings: Settings, topics: list[str] | None, *, end: bool) -> list[LostEnd]:
    """Return the hanging transactions; with *end* they have been ended where possible, else BrokerError is
    raised.
    """
    from holdfast.kafka.requests.raw_log import RawLog
    from holdfast.pipeline.hanging import Hanging

    async with RawLog(settings) as raw:
        cluster = Hanging(settings, raw)
        found = await cluster.find(topics)
        if end and found:
            await cluster.end(found)
            if left := {each.transaction for each in await cluster.find(topics)} & {
                each.transaction for each in found if each.decided
            }:
                first = min(left)
                raise BrokerError(
                    f"{len(left)} transactions hang though their markers were written, the first in"
                    f" {first.topic} partition {first.partition} at {first.first_offset}; stop their"
                    " producers and try again"
                )
        return found


def hanging(
    context: typer.Context,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", metavar="TOPIC", help="Only this topic; may be repeated.")
    ] = None,
    end: Annotated[
        bool,
        typer.Option(
            "--end", help="Write the missing markers of the recorded outcome. Stop the producers first."
        ),
    ] = False,
) -> None:
    found = asyncio.run(_find(settings_of(context), topic, end=end))
    show([_record(each) for each in found], COLUMNS, output_of(context))
    unknown = sum(each.decided is None for each in found)
    if not found:
        note("no transaction hangs")
    elif end:
        note(f"{len(found) - unknown} ended as was decided")
    else:
        note(
            "readers of committed records wait before these for ever; stop their producers and end them with"
            " --end"
        )
    if unknown:
        note(
            f"the coordinator's log has no outcome of {unknown}; `kafka-transactions.sh abort` aborts one, "
            "which is right if no other partition has committed it"
        )
    if found and (unknown or not end):
        raise typer.Exit(1)


def register_hanging(app: typer.Typer) -> None:
    """Add the command to `holdfast producers`."""
    app.command(
        "hanging",
        help="List hanging transactions; --end writes their recorded outcome.",
    )(hanging)
