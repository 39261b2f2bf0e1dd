"""One process with a claim consumer: a `Member`, a shell that carries out its actions, and a user who works
on the messages handed out.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any

from holdfast.core.claims.frames import Frame, ReleasingPartition
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.actions import (
    Action,
    CommitOffset,
    Deliver,
    DeliveryToken,
    Event,
    Fail,
    FetchOffsets,
    Identify,
    Notify,
    ReleaseReason,
    Send,
    Start,
    Stop,
)
from holdfast.core.member.member import Member
from holdfast.core.member.settings import Delivery, MemberSettings
from holdfast.errors import ClaimLostError, HoldfastError
from tests.simulation.broker import Broker, Committed
from tests.simulation.job import Habits, Job
from tests.simulation.process import MONO_S, Process
from tests.simulation.trace import WHOLE, Trace
from tests.simulation.units import data_place, offsets_of

if TYPE_CHECKING:
    from tests.simulation.checks import Checks

MUTE = frozenset({Event.RACE_LOST})


class Node(Process):
    """One process with a claim consumer."""

    def __init__(
        self,
        broker: Broker,
        checks: Checks,
        trace: Trace,
        settings: MemberSettings,
        habits: Habits,
        topics: dict[str, int],
        draws: Random,
        *,
        rate: float = 1.0,
        skew_s: float = 0.0,
    ) -> None:
        super().__init__(
            broker, checks, trace, settings.client_id, settings.instance_id, draws, rate=rate, skew_s=skew_s
        )
        self.settings, self.habits = settings, habits
        self.counts = dict(topics)
        self.at_most_once = settings.delivery is Delivery.AT_MOST_ONCE
        self.member: Member | None = None
        self.jobs: dict[TopicPartition, Job] = {}
        self.error: HoldfastError | None = None
        self.full_at_s = -inf
        self.is_of_before = False
        """True if it runs an earlier release, which knows no marks of topics."""
        self._tick_at_s = inf
        self.timeline.after(draws.random() * 0.01, self._begin)

    def can_claim(self, place: TopicPartition, since_s: float, until_s: float) -> bool:
        """Return whether nothing kept this process from claiming *place* all that time."""
        member = self.member
        if self.error is not None or self.leaving or member is None or self.full_at_s >= since_s:
            return False
        return place.partition < self.counts.get(place.topic, 0) and self.healthy(since_s, until_s)

    def position(self, place: TopicPartition) -> int:
        """Return the next offset to hand out; of a claim that is held and not started yet, where it would
        start.
        """
        job = self.jobs.get(place)
        if job is not None and not job.stopped:
            return job.queue[0] if job.queue else job.position
        told = None if self.member is None else self.member.committed_offset(*place)
        return 0 if told is None else told

    def holds(self, place: TopicPartition) -> bool:
        """Return whether its own book says that the partition is its."""
        return self.member is not None and place in self.member.claims

    def is_full(self, place: TopicPartition) -> bool:
        """Return whether it waits for its user, as it should."""
        job = self.jobs.get(place)
        if job is not None and job.stopped and job.open_offsets:
            return True  # it gives the claim up, and lets its user finish the messages in hand
        return (
            self.member is not None and self.member.outstanding(*place) >= self.settings.maximum_outstanding
        )

    def fail_fetch(self) -> None:
        """The broker refuses to be read at some position."""
        if not self.put_off(self.fail_fetch) and self.member is not None and self.jobs:
            place = self.draws.choice(list(self.jobs))
            self.fault(0.1)
            self._do(self.member.fetch_failed(*place, "planned", self.mono_s()))
            self._replan()

    # -- life

    def _begin(self) -> None:
        self.member = Member(
            self.settings,
            coordination_partitions=len(self.broker.logs),
            draws=self.draws,
            now_s=self.mono_s(),
            unix_s=self.wall_s(),
        )
        self.trace.note(WHOLE, self.name, f"starts as {self.client}")
        for topic, count in self.counts.items():
            self._do(self.member.partitions(topic, count, self.mono_s()))
        self._read_new_logs()
        self.timeline.after(self.draws.random() * self.habits.pace_s, self._work)

    def _read_new_logs(self) -> None:
        assert self.member is not None
        for index in sorted(self.member.coordination - self._cursors.keys()):
            self.follow(index)

    def caught_up(self, index: int) -> None:
        if self.member is not None:
            self._do(self.member.caught_up(index, self.mono_s()))
            self._replan()

    def observe(self, index: int, offset: int, records: list[tuple[Frame, int]]) -> None:
        member = self.member
        assert member is not None
        now_s = self.mono_s()
        self._do(member.clock(self.wall_s(), now_s))
        for frame, at_ms in records:
            actions = member.observe(frame, index, offset, at_ms, now_s)
            offset += 1
            if actions:
                self._do(actions)
        self._replan()

    def _replan(self) -> None:
        """See to it that the member is woken when it wants to be."""
        member = self.member
        if member is None or not self.alive:
            return
        if member.terminated:
            self._ended()
            return
        wake_s = member.wake_at_s()
        if wake_s < inf:
            at_s = self.born_s + (wake_s - MONO_S) / self.rate
            if at_s < self._tick_at_s - 1e-6:
                self._tick_at_s = at_s
                self.timeline.at(at_s + 1e-6, self._tick, at_s)

    def _tick(self, at_s: float) -> None:
        if at_s != self._tick_at_s or self.put_off(self._tick, at_s):
            return
        self._tick_at_s = inf
        member = self.member
        assert member is not None
        now_s = self.mono_s()
        if now_s >= member.wake_at_s():
            self._do(member.clock(self.wall_s(), now_s))
            self._do(member.tick(now_s))
            if member.terminated and self.alive:
                self._ended()
                return
            if len(member.coordination) > len(self._cursors):
                self._read_new_logs()
        self._replan()

    def _ended(self) -> None:
        self.trace.note(
            WHOLE,
            self.name,
            "has ended" if self.error is None else f"has failed: {type(self.error).__name__}",
        )
        self.die()

    def sent(self, send_id: int, ok: bool) -> None:
        if self.put_off(self.sent, send_id, ok) or self.member is None:
            return
        if actions := self.member.sent(send_id, ok, self.mono_s()):
            self._do(actions)
        if self.member.terminated and self.alive:
            self._ended()
            return
        if not ok:
            self._replan()

    def terminate(self, release: bool) -> None:
        """End in good order."""
        if self.put_off(self.terminate, release) or self.member is None or self.leaving:
            return
        self.leaving = True
        self.fault(inf)
        self.trace.note(WHOLE, self.name, f"ends, {'releasing' if release else 'keeping'} its claims")
        self._do(self.member.terminate(release, self.mono_s()))
        if self.member.terminated:
            self._ended()
            return
        self._replan()

    def aim(self, targets: Iterable[TopicPartition] | None) -> None:
        """Set the partitions to claim (balanced groups)."""
        if self.put_off(self.aim, targets) or self.member is None or self.leaving:
            return
        self._do(self.member.aim(None if targets is None else frozenset(targets), self.mono_s()))
        self._replan()

    def grow(self, topic: str, count: int) -> None:
        """Learn that a topic has more partitions."""
        if self.put_off(self.grow, topic, count):
            return
        count = self.counts[topic] = max(
            self.counts.get(topic, 0), count
        )  # news may overtake each other; the next look is right
        if self.member is not None:
            self._do(self.member.partitions(topic, count, self.mono_s()))
            self._replan()

    # -- actions of the member

    def _do(self, actions: Iterable[Action]) -> None:
        trace = self.trace
        actions = list(actions)
        if actions:
            trace.count_in(self.name, actions)
        for action in actions:
            kind = type(action)
            if kind is Send:
                frame: Any = action.frame  # type: ignore[union-attr]
                place = TopicPartition(frame.topic, frame.partition)
                if type(frame) is ReleasingPartition:
                    self._check_kept_back(place, frame.current_offset)
                trace.note(
                    place, self.name, "sends", type(frame).__name__, *frame.__struct_fields__[-2:-1],
                    getattr(frame, frame.__struct_fields__[-2]),
                )  # fmt: skip
                self.wire.send(frame, action.coordination_partition, action.send_id)  # type: ignore[union-attr]
            elif kind is FetchOffsets:
                self.timeline.after(
                    self.broker.delay_s() * 2,
                    self._looked,
                    TopicPartition(action.topic, action.partition),  # type: ignore[union-attr]
                )
            elif kind is Identify:
                self.timeline.after(
                    self.broker.delay_s() * 2,
                    self._identified,
                    TopicPartition(action.topic, action.partition),  # type: ignore[union-attr]
                    self.mono_s(),
                )
            elif kind is Start:
                self._start(action)  # type: ignore[arg-type]
            elif kind is Stop:
                self._stop(TopicPartition(action.topic, action.partition))  # type: ignore[union-attr]
            elif kind is Deliver:
                job = self.jobs.get(TopicPartition(action.topic, action.partition))  # type: ignore[union-attr]
                if job is not None:
                    job.granted = max(job.granted, action.offset_end)  # type: ignore[union-attr]
            elif kind is CommitOffset:
                place = TopicPartition(action.topic, action.partition)  # type: ignore[union-attr]
                self.timeline.after(
                    self.broker.delay_s(),
                    self.broker.committed.__setitem__,
                    place,
                    Committed(action.offset, action.topic_mark),  # type: ignore[union-attr]
                )
            elif kind is Notify:
                self._notify(action)  # type: ignore[arg-type]
            elif kind is Fail:
                self.error = action.error  # type: ignore[union-attr]
                self.fault(inf)
                self.checks.on_fail(self, action.error)  # type: ignore[union-attr]

    def _check_kept_back(self, place: TopicPartition, offset: int) -> None:
        """At most once: who gives a claim back names nothing as done that it did not hand out."""
        job = self.jobs.get(place)
        if job is not None and self.at_most_once and job.position < min(job.granted, offset):
            self.checks.on_undelivered(self, place, job.position, offset)

    def _notify(self, told: Notify) -> None:
        if told.event is Event.RELEASING:
            self._check_work(TopicPartition(told.topic, told.partition), told.reason)
        if told.event not in MUTE:
            self.trace.note(
                TopicPartition(told.topic, told.partition),
                self.name,
                told.event.value,
                told.reason.value if told.reason else "",
                told.text,
            )

    def _check_work(self, place: TopicPartition, reason: ReleaseReason | None) -> None:
        """In a group without Go members, a member with messages in hand is not stuck, and is slow only once
        `handler_timeout_s` has passed.
        """
        job = self.jobs.get(place)
        if (
            job is None
            or not job.open_offsets
            or self.settings.interop
            or reason not in (ReleaseReason.WEDGED, ReleaseReason.HANDLER_TIMEOUT)
        ):
            return
        since_s = self.mono_s() - job.worked_s
        if (
            reason is ReleaseReason.WEDGED
            or since_s < self.settings.handler_timeout_s - self.settings.heartbeat_interval_s
        ):
            self.checks.on_given_up_at_work(self, place, since_s, len(job.open_offsets))

    def _looked(self, place: TopicPartition) -> None:
        if self.put_off(self._looked, place):
            return
        if self.deaf_until_s > self.timeline.now_s:
            self.timeline.at(self.deaf_until_s + self.broker.delay_s(), self._looked, place)
            return
        assert self.member is not None
        latest, mark = self.broker.latest.get(data_place(place), 0), self._mark(place)
        committed = self.broker.committed.get(place)
        known = None if committed is None or mark not in (None, committed.mark) else committed.offset
        self._do(self.member.watermarks(*place, 0, latest, known, self.mono_s(), mark))
        self._replan()

    def _mark(self, place: TopicPartition) -> int | None:
        """Return which topic there is, as far as this process asks."""
        return None if self.is_of_before else self.broker.mark(place)

    def _identified(self, place: TopicPartition, asked_s: float) -> None:
        if self.put_off(self._identified, place, asked_s):
            return
        if self.deaf_until_s > self.timeline.now_s:
            self.timeline.at(self.deaf_until_s + self.broker.delay_s(), self._identified, place, asked_s)
            return
        assert self.member is not None
        self._do(self.member.identity(*place, self._mark(place), asked_s, self.mono_s()))
        self._replan()

    def _start(self, action: Start) -> None:
        place = TopicPartition(action.topic, action.partition)
        assert place not in self.jobs or self.jobs[place].stopped, f"{place} started twice"
        self.trace.note(place, self.name, "starts at", action.offset, "epoch", action.epoch)
        self.jobs[place] = Job(place, action.offset, action.epoch, self.broker.mark(place))
        self.checks.on_start(self, place, action.offset)

    def _stop(self, place: TopicPartition) -> None:
        job = self.jobs.get(place)
        if job is None:
            return
        self.trace.note(place, self.name, "stops at", job.position, "with", len(job.open_offsets), "open")
        job.stopped = True
        if self.at_most_once and self.member is not None:
            left = job.position if job.position < job.granted else None
            self._do(self.member.messages.kept_back(*place, left, self.mono_s()) or [])
        elif job.queue:
            first, job.queue = job.queue[0], []
            self.timeline.after(0.0, self._withdraw, place, first)

    def _withdraw(self, place: TopicPartition, offset: int) -> None:
        if self.alive and self.member is not None:
            self._do(self.member.messages.withdrawn(*place, offset, self.mono_s()))
            self._replan()

    # -- the user

    def _work(self) -> None:
        if self.put_off(self._work):
            return
        draws, member, habits = self.draws, self.member, self.habits
        assert member is not None
        for place, job in list(self.jobs.items()):
            if self.jobs.get(place) is not job:
                continue
            if draws.random() >= habits.idleness:
                if self.at_most_once:
                    self._work_at_most_once(member, job)
                else:
                    self._finish_some(member, job)
                    self._hand_out(member, job)
            if job.stopped and not job.open_offsets:
                self.jobs.pop(place, None)
            elif not job.stopped and draws.random() < 0.3:
                latest = self.broker.latest.get(data_place(place), 0)
                self._do(member.watermarks(*place, 0, latest, None, self.mono_s(), self._mark(place)))
        if draws.random() < habits.flushes and self.alive:
            self._do(member.messages.flush(self.mono_s()))
        self._replan()
        if self.alive:
            self.timeline.after(habits.pace_s * (0.5 + draws.random()), self._work)

    def _finish_some(self, member: Member, job: Job) -> None:
        """The user is done with some of the messages handed out."""
        draws, habits = self.draws, self.habits
        open_offsets = job.open_offsets
        if not open_offsets or draws.random() < habits.slowness:
            return
        place = job.place
        count = draws.randint(1, len(open_offsets))
        if draws.random() < habits.disorder:
            done = sorted(draws.sample(open_offsets, count))
            left = [offset for offset in open_offsets if offset not in done]
        else:
            done, left = open_offsets[:count], open_offsets[count:]
        try:
            if draws.random() < 0.5:
                actions = member.messages.commit_many(*place, job.epoch, done, self.mono_s())
            else:
                actions = []
                for offset in done:
                    actions += member.messages.commit(DeliveryToken(*place, offset, job.epoch), self.mono_s())
        except ClaimLostError:
            self.trace.note(place, self.name, "lost the claim with", len(open_offsets), "open")
            job.open_offsets = []
            job.stopped = True
            return
        job.open_offsets = left
        end = left[0] if left else job.queue[0] if job.queue else job.position
        if (mark := self.broker.mark(place)) == job.begun_mark:
            self.checks.on_done(self, place, job.epoch, job.of_topic(done, mark), job.prefix, end)
        if done[0] == open_offsets[0]:
            job.worked_s = self.mono_s()
        job.prefix = max(job.prefix, end)
        if actions:
            self._do(actions)

    def _hand_out(self, member: Member, job: Job) -> None:
        """Hand out queued messages, else those that can be fetched, if the gate allows it."""
        place, now_s, draws = job.place, self.mono_s(), self.draws
        if job.stopped or not member.may_deliver(*place, now_s):
            return
        if not job.queue:
            latest = self.broker.latest.get(data_place(place), 0)
            end = min(latest, job.position + draws.randint(1, self.habits.batch))
            if end <= job.position or self.deaf_until_s > self.timeline.now_s:
                return
            offsets = offsets_of(place, job.position, end)
            job.position = end
            if not offsets:
                self._do(member.messages.skipped(*place, end, now_s))
                return
            job.note_fetched(offsets, self.broker.mark(place))
            self._do(member.messages.delivered(*place, offsets, now_s))
            if job.stopped:
                return
            job.queue = list(offsets)
        count = len(job.queue) if draws.random() < 0.7 else draws.randint(1, len(job.queue))
        handed, job.queue = job.queue[:count], job.queue[count:]
        self.trace.note(place, self.name, "hands out", handed[0], "to", handed[-1])
        if (mark := self.broker.mark(place)) == job.begun_mark:
            # Until it notices that the topic was made again, it hands out messages that will all come again.
            self.checks.on_hand_out(self, place, job.of_topic(handed, mark))
        if not job.open_offsets:
            job.worked_s = now_s
        job.open_offsets += handed

    def _work_at_most_once(self, member: Member, job: Job) -> None:
        place, now_s, draws = job.place, self.mono_s(), self.draws
        if job.stopped:
            return
        if job.position < job.granted and member.may_deliver(*place, now_s):
            end = min(job.granted, job.position + draws.randint(1, self.habits.batch))
            offsets = offsets_of(place, job.position, end)
            job.position = end
            if offsets:
                # First to the user, as a client does: the member may give the claim back once the delivery is
                # reported.
                self.trace.note(place, self.name, "hands out", offsets[0], "to", offsets[-1])
                self.checks.on_hand_out(self, place, job.of_topic(offsets, self.broker.mark(place)))
                self._do(member.messages.delivered(*place, offsets, now_s))
            else:
                self._do(member.messages.skipped(*place, end, now_s))
        if job.stopped or job.asked > job.granted or job.position < job.granted:
            return
        latest = self.broker.latest.get(data_place(place), 0)
        end = min(latest, job.granted + draws.randint(1, self.habits.batch))
        if end > job.granted and self.deaf_until_s <= self.timeline.now_s:
            job.asked = end
            job.note_fetched(offsets_of(place, job.granted, end), self.broker.mark(place))
            self._do(member.messages.fetched(*place, end, now_s))
