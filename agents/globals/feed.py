"""The logs of global tables as a worker reads them: all partitions of their topics, by the fetcher that
sources are read by.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from typing import Any

from confluent_kafka import KafkaException

from holdfast.config import Settings
from holdfast.core.engine.fold.skips import OffsetRanges
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import BrokerError, GlobalsError, TopicError
from holdfast.kafka.clients import make_admin
from holdfast.kafka.fetching.source_fetcher import Fetched, SourceFetcher
from holdfast.kafka.requests.connections import connector

FETCH_RECORDS, FETCH_BYTES, QUEUE_BYTES = 20_000, 4 << 20, 8 << 20
WAIT_S = 0.5


class GlobalFeed:
    """Reads *topics* from given positions on; `fetch` gives what has come, and `reached` how far that is."""

    def __init__(
        self, settings: Settings, executor: Executor, skips: Callable[[str, int], OffsetRanges]
    ) -> None:
        self._settings, self._skips = settings, skips
        self._feed = SourceFetcher(
            connector(settings, timeout_s=settings.request_timeout_s),
            executor,
            fetch_records=FETCH_RECORDS,
            fetch_bytes=FETCH_BYTES,
            queue_bytes=QUEUE_BYTES,
            unpacked_batch_bytes=settings.unpacked_batch_bytes,
            timeout_s=settings.request_timeout_s,
            exact=True,
        )

    async def assign(self, starts: Mapping[Place, int]) -> None:
        """Read each partition from its offset on."""
        await self._feed.assign(starts, None, self._skips)

    async def fetch(self) -> list[Fetched]:
        """Return the records that have come, one item per partition; waits for WAIT_S at most."""
        return await self._feed.fetch(0, WAIT_S)

    def hold(self, place: Place, held: bool) -> None:
        """Fetch no more of a partition while it is *held*."""
        self._feed.hold(place, held)

    def reached(self, place: Place) -> int:
        """Return the offset up to which a partition was read."""
        return self._feed.position(place)

    def ends(self) -> dict[Place, int]:
        """Return where the committed log of each partition ends, as far as the broker has returned that."""
        return self._feed.ends()

    def unreadable(self) -> str | None:
        """Return the unreadable batch and the remedy; None while all can be read."""
        found = next(iter(self._feed.unreadable.values()), None)
        if found is None:
            return None
        return (
            f"{found}; raise unpacked_batch_bytes and restart the workers. A batch of a global's topic cannot"
            " be skipped: if it stays unreadable, have its producers write the topic anew under another name"
        )

    async def close(self) -> None:
        await self._feed.close()


def partitions_of(settings: Settings, topics: Iterable[str]) -> dict[str, int]:
    """Return how many partitions each topic has. Blocks; TopicError for one that is not there."""
    admin = make_admin(settings.client(), log_level=2)
    counts: dict[str, int] = {}
    for topic in topics:
        try:
            found = admin.list_topics(topic, timeout=settings.request_timeout_s).topics[topic]
        except KafkaException as error:
            raise BrokerError(
                f"partitions of {topic}: {error.args[0].str()}; check that the brokers of bootstrap.servers"
                " are reachable"
            ) from error
        if found.error is not None:
            raise TopicError(
                f"topic {topic} of a global table: {found.error.str()}; run `holdfast topics create`"
            )
        counts[topic] = len(found.partitions)
    return counts


def stalled(name: str, waited_s: float, vector: Any, wanted: Any) -> GlobalsError:
    """Return the error of a copy that does not come to where it must."""
    return GlobalsError(
        f"global table {name} is at {list(vector)} and must come to {list(wanted)}, and nothing was read for"
        f" {waited_s:.0f} s: check the broker, and that its topic was not deleted and made again"
    )


async def gather(futures: Mapping[Place, Any], timeout_s: float) -> dict[Place, int]:
    """Return the offsets of the *futures* that are done in time."""
    waiting = {place: asyncio.wrap_future(future) for place, future in futures.items()}
    if not waiting:
        return {}
    for each in waiting.values():
        each.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait(waiting.values(), timeout=timeout_s)
    return {
        place: int(each.result().offset)
        for place, each in waiting.items()
        if each.done() and not each.cancelled() and each.exception() is None
    }
