"""At most once: who takes messages gets all that the log has committed before its claim is given back.

Without a broker.
"""

from __future__ import annotations

import threading
from collections import deque
from math import inf
from random import Random
from typing import Any, cast

import pytest
from confluent_kafka import Message

from holdfast.clients.claims.base import ConsumerBase
from holdfast.clients.claims.claiming.engine import ClaimEngine
from holdfast.clients.claims.claiming.fetcher import ClaimFetcher, FetchSettings
from holdfast.clients.claims.claiming.queue import FetchedMessages, Lease
from holdfast.clients.claims.logs.claim_log import LogRecord
from holdfast.clients.claims.options import EngineSettings
from holdfast.clock import ManualClock
from holdfast.config import Settings
from holdfast.core.claims.frames import Frame, Heartbeat, ReleaseGroup, ReleasingPartition, decode, encode
from holdfast.core.member.actions import Event
from holdfast.core.member.member import Member
from holdfast.core.member.settings import Delivery, MemberSettings
from holdfast.errors import BrokerError
from tests.support.patience import DEADLINE_S


class Record:
    """Stands for a message of Kafka's: all that is asked of it here is where it lies."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset


class Rig:
    """An engine whose thread does not run, with a log that takes every frame at once, and messages that are
    put by hand.
    """

    def __init__(
        self, delivery: Delivery = Delivery.AT_MOST_ONCE, *, at_most_once_messages: int = 20
    ) -> None:
        self.clock = ManualClock(now_ms=1_700_000_000_000)
        settings = MemberSettings(
            group_id="g",
            client_id="a",
            instance_id="a1",
            topics=("orders",),
            heartbeat_interval_s=4.0,
            delivery=delivery,
            drain_s=2.0,
        )
        self.engine = ClaimEngine(
            Settings(kafka={"bootstrap.servers": "nobody:1"}),
            settings,
            EngineSettings(),
            FetchSettings(at_most_once_messages=at_most_once_messages),
            clock=self.clock,
            draws=Random(1),
        )
        self.frames: list[Frame] = []
        self._unread: deque[Frame] = deque()
        self.engine._log.send = self._send  # type: ignore[method-assign]
        self.lease: Lease | None = None
        now_s = self.clock.monotonic_s()
        self.member = self.engine.member = Member(
            settings,
            coordination_partitions=1,
            draws=Random(1),
            now_s=now_s,
            unix_s=self.clock.now_ms() / 1000,
        )
        self.engine.delivery.attach(self.member, cast(ClaimFetcher, self))
        self.do(self.member.partitions("orders", 1, now_s))
        self.do(self.member.caught_up(0, now_s))
        self.clock.advance_ms(300)
        self.do(self.member.tick(self.clock.monotonic_s()))
        self.do(self.member.watermarks("orders", 0, 0, 100, None, self.clock.monotonic_s()))
        assert self.lease is not None
        self.hands: ConsumerBase = ConsumerBase(self.engine)

    # what a feed does

    def start(self, lease: Lease) -> Lease:
        self.lease = lease
        return lease

    def stop(self, lease: Lease) -> None:
        lease.close()
        self.engine.delivery.queue.drop(lease)

    # what a log and an engine do

    def _send(self, send_id: int, value: bytes, partition: int) -> None:
        frame = decode(value)
        self.frames.append(frame)
        self._unread.append(frame)

    def do(self, actions: Any) -> None:
        with self.engine.lock:
            self.engine._do(actions)
            self.read()

    def read(self) -> None:
        while self._unread:
            offset = len(self.frames) - len(self._unread)
            self.engine._do(
                self.member.observe(
                    self._unread.popleft(), 0, offset, self.clock.now_ms(), self.clock.monotonic_s()
                )
            )

    def turn(self, after_ms: int = 0) -> None:
        """Do what the engine's thread does in a turn."""
        self.clock.advance_ms(after_ms)
        with self.engine.lock:
            now_s = self.clock.monotonic_s()
            self.engine.delivery.turn(self.member, now_s)
            self.engine._do(self.member.tick(now_s))
            self.read()

    def put(self, begin: int, end: int, *, moves_to: int = 0) -> None:
        """Have messages arrive; with *moves_to* the log continues to there without any."""
        assert self.lease is not None
        records = cast("list[Message]", [Record(offset) for offset in range(begin, end)])
        batches = [FetchedMessages(self.lease, records, begin, end, True, 10)]
        if moves_to:
            batches.append(FetchedMessages(self.lease, [], end, moves_to, True, 0))
        self.engine.delivery.queue.put(batches)
        if self.member.settings.delivery is Delivery.AT_MOST_ONCE:
            with self.engine.lock:
                self.engine.delivery._propose(self.member, self.lease, self.clock.monotonic_s())
                self.read()

    def terminate(self) -> None:
        self.engine.ending = True
        self.do(self.member.terminate(True, self.clock.monotonic_s()))

    @property
    def released_at(self) -> int | None:
        return next(
            (frame.current_offset for frame in self.frames if isinstance(frame, ReleasingPartition)), None
        )


def test_the_last_batch_of_a_claim_that_is_given_back_is_handed_out() -> None:
    rig = Rig()
    rig.put(0, 10)
    assert any(isinstance(frame, Heartbeat) and frame.current_offset == 10 for frame in rig.frames)
    rig.terminate()
    assert not rig.engine.over
    rig.turn()
    assert rig.released_at is None
    batch = rig.hands._next_batch()
    assert batch is not None
    assert (batch.first_offset, batch.next_offset) == (0, 10)
    rig.turn()
    assert rig.released_at == 10
    assert rig.engine.over
    assert rig.hands._next_batch() is None


def test_a_claim_is_not_given_back_between_the_messages_of_a_committed_batch() -> None:
    rig = Rig()
    rig.put(0, 5, moves_to=7)
    first = rig.hands._next_message()
    rig.terminate()
    offsets = [-1 if first is None else first.offset]
    while not rig.engine.over:
        rig.turn()
        message = rig.hands._next_message()
        if message is not None:
            offsets.append(message.offset)
            assert rig.released_at is None
    assert offsets == [0, 1, 2, 3, 4]
    assert rig.released_at == 7
    assert rig.engine.delivery.undelivered == 0


@pytest.mark.parametrize("taken", [0, 2])
def test_messages_not_taken_in_the_drain_window_are_the_next_owners(taken: int) -> None:
    rig = Rig()
    rig.put(0, 3)
    rig.put(3, 6)  # not announced before the committed batch has been taken
    for _ in range(taken):
        assert rig.hands._next_message() is not None
    rig.terminate()
    rig.turn(1_900)
    assert rig.released_at is None
    rig.turn(200)
    assert rig.released_at == taken
    row = rig.member.row("orders", 0)
    assert row is not None
    assert row.current_offset == taken, "the log takes it back"
    assert rig.engine.over
    assert rig.hands._next_message() is None
    assert not [event for event in rig.engine.events.seen() if event.event is Event.UNDELIVERED]
    assert rig.engine.delivery.undelivered == 0


def test_a_stop_that_keeps_the_claims_gives_back_messages_that_are_committed_and_not_handed_out() -> None:
    rig = Rig()
    rig.put(0, 5)
    assert rig.hands._next_message() is not None
    rig.engine.ending = True
    rig.do(rig.member.terminate(False, rig.clock.monotonic_s()))
    assert rig.released_at == 1
    assert rig.hands._next_message() is None


def test_committed_messages_are_lost_with_the_claim_and_reported_as_lost() -> None:
    rig = Rig()
    rig.put(0, 5)
    assert rig.hands._next_message() is not None
    now_s = int(rig.clock.now_ms() / 1000)
    other = Heartbeat(now_s, "i", "other", "g", "orders", 0, 5)
    rig.clock.advance_ms(9_000)  # longer than a silent owner keeps it
    rig.frames.append(other)
    rig._unread.append(other)
    with rig.engine.lock:
        rig.read()
    lost = [event.text for event in rig.engine.events.seen() if event.event is Event.UNDELIVERED]
    assert lost == ["4 messages, offsets 1 to 4, were committed and not taken before the claim was given up"]
    assert rig.engine.delivery.undelivered == 4


def test_no_more_is_committed_than_a_kill_may_cost() -> None:
    rig = Rig(at_most_once_messages=3)
    rig.put(0, 4)
    rig.put(4, 8)
    taken = 0
    for _ in range(40):
        rig.turn(20)
        row = rig.member.row("orders", 0)
        assert row is not None
        assert row.current_offset is not None
        assert row.current_offset - taken <= 3
        if rig.hands._next_message() is not None:
            taken += 1
    assert taken == 8


def test_at_least_once_nothing_more_is_handed_out_after_the_end_began() -> None:
    """Messages not handed out then are the next owner's, so the end does not wait for them."""
    rig = Rig(Delivery.AT_LEAST_ONCE)
    rig.put(0, 5)
    message = rig.hands._next_message()
    assert message is not None
    rig.terminate()
    assert rig.engine.over
    assert rig.hands._next_message() is None
    message.commit()
    rig.turn(2_100)
    assert rig.released_at == 1
    assert not [event for event in rig.engine.events.seen() if event.event is Event.UNDELIVERED]


def test_a_taker_that_comes_by_during_a_stop_does_not_lose_the_batch_set_aside() -> None:
    """Both want the batch that was set aside. Whichever gets it, the member learns that it was not handed
    out: else the release would wait for it.
    """
    rig = Rig(Delivery.AT_LEAST_ONCE)
    rig.put(0, 5)
    assert rig.hands._next_message() is not None
    assert rig.lease is not None
    until_s = rig.lease.gate.deliver_until_s
    rig.lease.gate.extend(-inf)
    assert rig.hands._next_message() is None, "the batch is set aside until the lease is renewed"
    rig.lease.gate.extend(until_s)
    taker = threading.Thread(target=rig.hands._next_message)

    def stop(lease: Lease) -> None:
        Rig.stop(rig, lease)
        taker.start()
        taker.join(0.2)  # it ends only when it does not wait for the stop

    rig.stop = stop  # type: ignore[method-assign]
    assert rig.member.outstanding("orders", 0) == 5
    rig.terminate()
    taker.join(DEADLINE_S)
    assert rig.member.outstanding("orders", 0) == 1


def test_a_failed_engine_hands_out_nothing_whatever_its_member_says() -> None:
    rig = Rig(Delivery.AT_LEAST_ONCE)
    rig.put(0, 5)
    message = rig.hands._next_message()
    assert message is not None
    assert message.is_held
    rig.engine.fail(BrokerError("the broker is gone"))
    assert not message.is_held
    assert rig.lease is not None
    rig.lease.gate.extend(1e9)  # as a heartbeat does that the log shows now
    assert not message.is_held
    rig.lease.gate.deliver_until_s = 1e9  # as an extension leaves it that was under way in another thread
    assert not message.is_held
    assert rig.hands._next_message() is None


def test_a_clock_that_was_wrong_at_the_last_tick_does_not_end_a_pause_that_is_read_now() -> None:
    """Long may pass between two ticks of a member with nothing to do; what it reads then is judged by what
    the clock shows then.
    """
    clock = ManualClock(now_ms=1_700_000_000_000)
    wanted = MemberSettings(
        group_id="g", client_id="a", instance_id="a1", topics=("orders",), heartbeat_interval_s=4.0
    )
    settings = Settings(kafka={"bootstrap.servers": "nobody:1"})
    engine = ClaimEngine(settings, wanted, EngineSettings(), FetchSettings(), clock=clock, draws=Random(1))
    clock.jump_ms(50_000)
    member = Member(
        wanted,
        coordination_partitions=1,
        draws=Random(1),
        now_s=clock.monotonic_s(),
        unix_s=clock.now_ms() / 1000,
    )
    member.caught_up(0, clock.monotonic_s())
    clock.jump_ms(-50_000)
    clock.advance_ms(10_000)
    now_ms = clock.now_ms()
    pause = ReleaseGroup(now_ms // 1000, "reset-1", "admin", "g", now_ms // 1000 + 30)
    engine._observe(member, [LogRecord(0, 0, now_ms, encode(pause))])
    assert [event.event for event in engine.events.seen()] == [Event.PAUSED]
