"""Queues between the thread that fetches messages and the code that takes them, with limits in messages and
in bytes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Container, Iterable
from typing import NamedTuple

from confluent_kafka import Message

from holdfast.core.member.claim.gate import Gate


class Lease:
    """One stay of one partition with this instance, from `Start` to `Stop`. Another stay of the same
    partition is another Lease.

    *gate* is the member's: whether messages may be handed out. It is shut before anything else happens at a
    stop, and checked last before a hand-out. *next_offset* is the fetching position, *granted* the end of the
    messages that may be handed out at most once (unused otherwise). *topic* is the claimed name; its messages
    are those of *source*, which is another topic where *lane* says which of its messages they are.
    """

    __slots__ = (
        "epoch",
        "gate",
        "granted",
        "lane",
        "next_offset",
        "partition",
        "proposed",
        "queue",
        "source",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        partition: int,
        next_offset: int,
        epoch: int,
        gate: Gate,
        *,
        source: str | None = None,
        lane: int | None = None,
    ) -> None:
        self.topic, self.partition, self.epoch, self.gate = topic, partition, epoch, gate
        self.source, self.lane = source or topic, lane
        self.next_offset = self.granted = self.proposed = next_offset
        self.queue: deque[FetchedMessages] = deque()

    @property
    def open(self) -> bool:
        """Return whether the stay continues: its gate may open again."""
        return not self.gate.is_shut

    def close(self) -> None:
        """Hand out nothing of this stay from this moment on."""
        self.gate.shut()

    def __repr__(self) -> str:
        return (
            f"Lease({self.topic}/{self.partition}, epoch {self.epoch}, {'open' if self.open else 'closed'})"
        )


class FetchedMessages(NamedTuple):
    """Messages of one partition in offset order, as one fetch brought them. *end* is the position after them.

    *dense*: every offset from *first* to *end* has a message. No messages at all: only the position moved,
    over a hole at the log's end.
    """

    lease: Lease
    messages: list[Message]
    first: int
    end: int
    dense: bool
    size_bytes: int

    def offsets(self) -> range | list[int]:
        """Return the offsets of the messages, a range where that says it all."""
        return range(self.first, self.end) if self.dense else [each.offset() or 0 for each in self.messages]

    def split(self, count: int) -> tuple[FetchedMessages, FetchedMessages]:
        """Return the first *count* messages and the rest; there must be more than that, and *count* must
        not be 0.
        """
        rest, total = self.messages[count:], len(self.messages)
        first, size = rest[0].offset() or 0, self.size_bytes * count // total
        end = (self.messages[count - 1].offset() or 0) + 1
        dense = end - self.first == count
        head = FetchedMessages(self.lease, self.messages[:count], self.first, end, dense, size)
        return head, FetchedMessages(
            self.lease, rest, first, self.end, self.end - first == total - count, self.size_bytes - size
        )


class Handout:
    """A batch that is handed out message by message; *at* is the index of the next one."""

    __slots__ = ("at", "batch")

    def __init__(self, batch: FetchedMessages) -> None:
        self.batch, self.at = batch, 0

    def rest(self) -> FetchedMessages:
        """Return the messages that have not been handed out, as a batch of their own."""
        return self.batch if self.at == 0 else self.batch.split(self.at)[1]


class FetchQueue:
    """Hands batches from the fetching thread to one taker: partitions in turn, each in its order.

    The taker is woken at most once for all that is put while it sleeps. At the limit the fetching thread
    waits, and with it librdkafka, which fetches ahead as far as its own limits go: that is the pause, and
    unlike librdkafka's own it throws nothing away. A batch still fits whatever is left, so the limits can be
    exceeded by one batch.
    """

    def __init__(self, *, limit_messages: int, limit_bytes: int) -> None:
        self._limit_messages, self._limit_bytes = limit_messages, limit_bytes
        self._turns: deque[Lease] = deque()  # each lease with something queued, once
        self._lock = threading.Lock()
        self._space = threading.Condition(self._lock)
        self._wake: Callable[[], None] | None = None
        self._closed = self._nudged = self._moves = False
        self.messages = 0
        self.size_bytes = 0

    # -- the fetching thread

    def wait_space(self, timeout_s: float) -> bool:
        """Return whether there is room, after at most *timeout_s*."""
        with self._lock:
            return self._has_space() or self._space.wait_for(self._has_space, timeout_s)

    @property
    def full(self) -> bool:
        """Return whether nothing more is fetched until something is taken."""
        return self.messages >= self._limit_messages or self.size_bytes >= self._limit_bytes

    def _has_space(self) -> bool:
        return not self._closed and not self.full

    def put(self, batches: Iterable[FetchedMessages]) -> None:
        """Append *batches* to their partitions' queues and wake the taker if it sleeps.

        Batches of a closed lease are dropped.
        """
        with self._lock:
            for batch in batches:
                lease = batch.lease
                if not lease.open or self._closed:
                    continue
                if not lease.queue:
                    self._turns.append(lease)
                elif not (batch.messages or lease.queue[-1].messages):
                    lease.queue.pop()  # a position that moves on twice is one move
                lease.queue.append(batch)
                self._moves |= not batch.messages
                self.messages += len(batch.messages)
                self.size_bytes += batch.size_bytes
            wake, self._wake = self._wake, None
            self._nudged = wake is None
        if wake is not None:
            wake()

    def queued(self, lease: Lease) -> tuple[int, int]:
        """Return how many messages of *lease* are queued, and how many bytes they are."""
        with self._lock:
            return sum(len(batch.messages) for batch in lease.queue), sum(
                batch.size_bytes for batch in lease.queue
            )

    def left(self, lease: Lease) -> list[FetchedMessages]:
        """Return the batches of *lease* that may be handed out at most once and wait to be taken."""
        with self._lock:
            return [batch for batch in lease.queue if batch.messages and batch.end <= lease.granted]

    def portion(self, lease: Lease, count: int) -> int:
        """Return where the first *count* messages of *lease* end, or all that are queued: whole batches end
        there from now on. There must be a batch.
        """
        with self._lock:
            end, left = lease.queue[0].first, count
            for index, batch in enumerate(lease.queue):
                if len(batch.messages) <= left:
                    end, left = batch.end, left - len(batch.messages)
                    continue
                if left:
                    head, rest = batch.split(left)
                    lease.queue[index] = head
                    lease.queue.insert(index + 1, rest)
                    end = head.end
                break
            return end

    # -- the taker

    def take(self, ready: Callable[[Lease], bool]) -> FetchedMessages | None:
        """Return the next batch of the next partition that is *ready*; None when there is none now."""
        with self._lock:
            for _ in range(len(self._turns)):
                lease = self._turns[0]
                if not lease.open:
                    self._turns.popleft()
                    self._discard(lease)
                elif ready(lease):
                    batch = lease.queue.popleft()
                    self._turns.popleft()
                    if lease.queue:
                        self._turns.append(lease)
                    self._left(len(batch.messages), batch.size_bytes)
                    return batch
                else:
                    self._turns.rotate(-1)
        return None

    def take_moves(self, *, but: Container[Lease] = ()) -> list[FetchedMessages]:
        """Return the batches that only move the position of a partition with nothing queued before it; needs
        no taker.

        Nothing of the leases in *but*.
        """
        if not self._moves:
            return []
        with self._lock:
            free = (each for each in self._turns if each not in but)
            found = [each.queue.popleft() for each in free if each.queue and not each.queue[0].messages]
            self._turns = deque(each for each in self._turns if each.queue)
            self._moves = any(not batch.messages for each in self._turns for batch in each.queue)
        return found

    def put_back(self, batch: FetchedMessages) -> None:
        """Put messages that were taken in excess to the front of their partition."""
        lease = batch.lease
        with self._lock:
            if lease.open and not self._closed:
                if not lease.queue:
                    self._turns.append(lease)
                lease.queue.appendleft(batch)
                self.messages += len(batch.messages)
                self.size_bytes += batch.size_bytes

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Have *wake* called once, as soon as something is put, nudged or closed; at once if that happened
        since the last wake.
        """
        with self._lock:
            if not (self._closed or self._nudged):
                self._wake = wake
                return
            self._nudged = False
        wake()

    # -- anybody

    @property
    def waiting(self) -> bool:
        """Return whether the taker sleeps."""
        return self._wake is not None

    def nudge(self) -> None:
        """Wake the taker, or keep it from falling asleep: what it may take has changed."""
        with self._lock:
            wake, self._wake = self._wake, None
            self._nudged = wake is None
        if wake is not None:
            wake()

    def drop(self, lease: Lease) -> None:
        """Drop the queued messages of a lease that has been closed."""
        with self._lock:
            if lease.queue:
                self._turns.remove(lease)
                self._discard(lease)

    def close(self) -> None:
        """Drop the queued messages and wake all waiting callers; nothing can be put any more."""
        with self._lock:
            self._closed = True
            while self._turns:
                self._discard(self._turns.popleft())
            wake, self._wake = self._wake, None
            self._space.notify_all()
        if wake is not None:
            wake()

    def _discard(self, lease: Lease) -> None:
        self._left(
            sum(len(batch.messages) for batch in lease.queue), sum(batch.size_bytes for batch in lease.queue)
        )
        lease.queue.clear()

    def _left(self, messages: int, size_bytes: int) -> None:
        self.messages -= messages
        self.size_bytes -= size_bytes
        self._space.notify()
