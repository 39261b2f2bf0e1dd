"""The messages of lanes: each partition is fetched once for all lanes of it that this instance holds, and
dealt out by key.

Reading is at the position of the slowest lane that takes more. A lane takes no more than its share of the
queue: messages beyond that are not kept for it but read once more when it has made room, so a lane that is
stuck costs its share and holds up no other lane.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition

from holdfast.clients.claims.claiming.fetcher import ClaimFetcher, size_of
from holdfast.clients.claims.claiming.queue import FetchedMessages, Lease
from holdfast.core.claims.lanes import is_full, lane_finder, lane_named, steer
from holdfast.core.kafka.topic_partition import Place


class _Stream:
    """One partition that is read for lanes.

    *position* is the reading position, None while no lane takes anything.
    """

    __slots__ = ("find", "full", "lanes", "position")

    def __init__(self, lanes: int) -> None:
        self.find: Callable[[bytes | None, int], int] = lane_finder(lanes)
        self.lanes: dict[int, Lease] = {}
        self.full: set[int] = set()
        self.position: int | None = None

    def hungry(self) -> list[Lease]:
        """Return the lanes that take more."""
        return [lease for lane, lease in self.lanes.items() if lease.open and lane not in self.full]


class LaneFetcher(ClaimFetcher):
    """A claim fetcher whose leases are of lanes."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._streams: dict[Place, _Stream] = {}

    def _places(self) -> Collection[Place]:
        return self._streams

    def _readers(self, place: Place) -> list[Lease]:
        stream = self._streams.get(place)
        return [] if stream is None else stream.hungry()

    # -- reading

    def _assign(self, consumer: Consumer, lease: Lease) -> None:
        named = lane_named(lease.topic)
        assert named is not None, f"{lease.topic} is no lane"
        if not lease.open:
            return
        self._leases[lease.topic, lease.partition] = lease
        place = (lease.source, lease.partition)
        if place not in self._streams:
            self._streams[place] = _Stream(named.lanes)
        stream = self._streams[place]
        stream.lanes[named.lane] = lease
        stream.full.discard(named.lane)

    def _unassign(self, consumer: Consumer, lease: Lease) -> None:
        if self._leases.get((lease.topic, lease.partition)) is not lease:
            return
        del self._leases[lease.topic, lease.partition]
        place = (lease.source, lease.partition)
        stream = self._streams[place]
        del stream.lanes[lease.lane]  # type: ignore[arg-type]  # of a lease in here it is known
        if not stream.lanes:
            if stream.position is not None:
                consumer.incremental_unassign([TopicPartition(*place)])
            self._watch(place, None)
            del self._streams[place]

    def _room(self, consumer: Consumer) -> bool:
        """Have every partition read where a lane wants it; return whether any is, else wait a moment."""
        for place, stream in self._streams.items():
            self._measure(stream)
            step = steer(stream.position, (lease.next_offset for lease in stream.hungry()))
            if step.seek is None and not step.idle:
                continue
            # Assigning again, unlike a seek, drops whatever is under way from the old position.
            if stream.position is not None:
                consumer.incremental_unassign([TopicPartition(*place)])
            if step.seek is not None:
                consumer.incremental_assign([TopicPartition(*place, step.seek)])
            self._watch(place, step.seek)
            stream.position = step.seek
        if any(stream.position is not None for stream in self._streams.values()):
            return True
        consumer.poll(0)
        self._called.wait(self._settings.fetch_poll_s)
        return False

    def _shares(self) -> tuple[int, int]:
        """Return how many messages and bytes may be queued for one lane."""
        count = max(1, len(self._leases))
        return max(1, self._settings.queue_messages // count), max(1, self._settings.queue_bytes // count)

    def _measure(self, stream: _Stream) -> None:
        messages, size_bytes = self._shares()
        for lane, lease in stream.lanes.items():
            queued, queued_bytes = self._queue.queued(lease)
            if is_full(lane in stream.full, max(queued / messages, queued_bytes / size_bytes)):
                stream.full.add(lane)
            else:
                stream.full.discard(lane)

    # -- sorting what came

    def _batches(self, place: Place, messages: list[Message]) -> list[FetchedMessages]:
        stream = self._streams.get(place)
        if stream is None or stream.position is None:
            return []
        end = (messages[-1].offset() or 0) + 1
        stream.position = max(stream.position, end)
        wanting = {lease.lane: lease for lease in stream.hungry() if lease.next_offset < end}
        dealt: dict[int | None, list[Message]] = {lane: [] for lane in wanting}
        find, low = stream.find, min((lease.next_offset for lease in wanting.values()), default=end)
        for message in messages:
            offset = message.offset() or 0
            if offset >= low:
                lane = find(message.key(), offset)
                if lane in dealt and offset >= wanting[lane].next_offset:
                    dealt[lane].append(message)
        return [self._deal(lease, dealt[lane], end) for lane, lease in wanting.items()]

    def _deal(self, lease: Lease, messages: list[Message], end: int) -> FetchedMessages:
        """Give a lane its messages before *end*, as many as fit; its position is then before the first that
        it was not given.
        """
        share, _ = self._shares()
        room = max(1, share - self._queue.queued(lease)[0])
        if len(messages) > room:
            end = messages[room].offset() or 0
            messages = messages[:room]
        lease.next_offset = end
        first = messages[0].offset() or 0 if messages else end
        return FetchedMessages(lease, messages, first, end, not messages, size_of(messages))
