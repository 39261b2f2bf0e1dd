"""`holdfast producers hanging`: lists transactions whose ends the brokers have lost, and writes their
recorded outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.context import output_of, settings_of
from holdfast.cli.logs.broker_logs import rows_of
from holdfast.cli.output import Cell, note, show, utc
from holdfast.clients.topics.admin import Admin
from holdfast.config import Settings
from holdfast.core.broker_logs.folds import TRANSACTION_TOPIC
from holdfast.core.broker_logs.lost_ends import (
    EndsRow,
    LostEnd,
    OpenTransactions,
    UnendedTransaction,
    ends_log,
    is_marker,
    lost_ends,
)
from holdfast.core.groups.java_order import coordinator_partition
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError, TopicError

if TYPE_CHECKING:
    from holdfast.kafka.requests.raw_log import RawLog

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


class Hanging:
    """Looks for hanging transactions on a cluster, and ends them."""

    def __init__(self, settings: Settings, raw: RawLog) -> None:
        self._settings, self._raw, self._admin = settings, raw, Admin(settings)

    async def find(self, topics: Iterable[str] | None) -> list[LostEnd]:
        """Return what hangs in *topics*, in all of them when None, each with what was decided if that is certain."""
        before = await self._open(await asyncio.to_thread(self._places, topics))
        if not before:
            return []
        rows = await asyncio.to_thread(self._rows)
        found = lost_ends(before, rows, await self._open({(each.topic, each.partition) for each in before}))
        return [await self._certain(each) for each in found]

    async def end(self, hanging: Iterable[LostEnd]) -> None:
        """Write the markers of those whose decision is known."""
        decided = [(each.transaction, each.decided) for each in hanging if each.decided is not None]
        coordinators = await asyncio.to_thread(self._places, [TRANSACTION_TOPIC])
        epochs = await asyncio.to_thread(self._admin.leader_epochs, coordinators)
        for each, how in decided:
            coordinator = TRANSACTION_TOPIC, coordinator_partition(how.transactional_id, len(coordinators))
            await self._raw.end_transaction(
                each.topic,
                each.partition,
                producer_id=each.producer_id,
                epoch=how.epoch,
                commit=how.commit,
                coordinator_epoch=epochs[coordinator],
            )

    def _places(self, topics: Iterable[str] | None) -> set[tuple[str, int]]:
        known = self._admin.cluster(topics).topics
        for topic in topics or ():
            if topic not in known:
                raise TopicError(f"topic {topic} does not exist")
        return {(name, each.partition) for name, topic in known.items() for each in topic.partitions}

    def _rows(self) -> dict[str, EndsRow]:
        return {key: row for _, key, row in rows_of(self._settings, ends_log())}

    async def _open(self, places: Iterable[Place]) -> list[UnendedTransaction]:
        """Return what is open in *places*: all that begins at the last stable offset or behind it, and has no marker."""
        places = sorted(places)
        stable = await asyncio.to_thread(self._admin.stable_offsets, places)
        bounds = await asyncio.to_thread(self._admin.offsets, places)
        found: list[UnendedTransaction] = []
        for place in places:
            if stable[place] < bounds[place][1]:
                transactions = OpenTransactions(*place)
                async for _, batch in self._raw.batches(*place, stable[place], until=bounds[place][1]):
                    transactions.add(batch)
                found += transactions.found()
        return found

    async def _certain(self, lost: LostEnd) -> LostEnd:
        """Return *lost* without its decision if that was to commit and its marker is there: then what is open came after it."""
        each, how = lost.transaction, lost.decided
        if how is None or not how.commit:
            return lost
        place = each.topic, each.partition
        begin = (await asyncio.to_thread(self._admin.offsets_at, [place], how.at_ms))[place]
        if begin is not None:
            async for _, batch in self._raw.batches(*place, begin, until=each.first_offset):
                if (
                    is_marker(batch)
                    and batch.producer_id == each.producer_id
                    and batch.max_timestamp_ms >= how.at_ms
                ):
                    return LostEnd(transaction=each, decided=None)
        return lost


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
    """Return what hangs; with *end* it has been ended where that could be, or BrokerError is raised."""
    from holdfast.kafka.requests.raw_log import RawLog

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
                    f"{len(left)} transactions hang though their markers were written, the first in {first.topic} partition "
                    f"{first.partition} at {first.first_offset}; stop their producers and try again"
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
            "readers of committed records wait before these for ever; stop their producers and end them with --end"
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
