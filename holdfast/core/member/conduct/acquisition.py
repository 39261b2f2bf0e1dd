"""Acquires claims: the race, fast reclaim, targets, and the rival under the same client id."""

from __future__ import annotations

from math import inf

from holdfast.core.claims.claim_keys import parse_claim_key
from holdfast.core.claims.frames import ClaimingPartition, Frame, Heartbeat
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.actions import Event, ReleaseReason
from holdfast.core.member.claim.local_claims import LocalClaim, frame_mark
from holdfast.core.member.claim.stages import Active, Claiming, Reclaiming, Won, work_of
from holdfast.core.member.conduct.renewal import Renewal
from holdfast.core.member.logs.log_view import FrameEffect, LogView
from holdfast.core.member.settings import SETTLE_INTERVALS
from holdfast.core.member.state import ClaimState
from holdfast.errors import ClockSkewError, HoldfastError, InstanceConflictError

LIMIT_ATTEMPTS = 200
"""Partitions claimed in one run of the claim loop; with more to claim it runs again at once."""
ALIVE_INTERVALS = 0.1
"""The distance in the log, in intervals, at which two frames of one process show that it lives; heartbeats
are 0.25 intervals apart at least.
"""
LIMIT_INSTANCES = 64
"""Processes of the own client that are remembered; the newest."""


class _Birth:
    """When an instance of the own client first wrote to a log, by the log's time, when last by its own,
    and whether it has gone on since.
    """

    __slots__ = ("at", "goes_on", "time_s")

    def __init__(self, at: tuple[int, str], time_s: int) -> None:
        self.at, self.time_s, self.goes_on = at, time_s, False


class Acquisition:
    """Decisions about claims that are not held yet."""

    def __init__(self, state: ClaimState, renewal: Renewal) -> None:
        self._state, self._renewal, self._settings = state, renewal, state.settings
        self._births: dict[str, _Birth] = {}
        self.began_ms = -1
        self.conflict_at_s = inf
        self._reclaimed: set[str] = set()
        self._skew_known = self._skewed = self.leaving = False
        self.end_at_s = inf

    # -- the loop

    def loop(self, now_s: float) -> None:
        """Claim as much as is due. Whatever ends one of the hindrances wakes the loop again."""
        self._state.loop_at_s = inf
        if self._state.ending or self._state.paused or self.conflict_at_s < inf:
            return
        if self._state.aims():
            more = self._claim_targets(now_s)
        elif self._settings.whole_topic:
            more = self._claim_topics(now_s)
        else:
            more = self._claim_partitions(now_s)
        self._state.loop_at_s = inf
        if more:
            self._state.wake_loop(now_s)

    def _claim_targets(self, now_s: float) -> bool:
        attempts = 0
        for place in sorted(self._state.targets or ()):
            if place in self._state.pool:
                if attempts == LIMIT_ATTEMPTS:
                    return True
                self._attempt(place, now_s)
                attempts += 1
        return False

    def _claim_partitions(self, now_s: float) -> bool:
        """Claim free partitions from a random one on: one in a run, or with *greedy* all that the limit
        allows.
        """
        limit = self._settings.maximum_claims
        attempts = 0
        while len(self._state.pool) and not (limit and len(self._state.claims) >= limit):
            if attempts == (LIMIT_ATTEMPTS if self._settings.greedy else 1):
                return True
            self._attempt(self._state.pool[self._chance(len(self._state.pool))], now_s)
            attempts += 1
        return False

    def _claim_topics(self, now_s: float) -> bool:
        """Partition 0 is the key to a topic: who holds it claims the rest."""
        mine = {topic for topic in self._state.topics.numbers if self._holds_key(topic)}
        keys = [claim for claim in self._state.claims if claim.partition == 0]
        limit, attempts, more = self._settings.maximum_claims, 0, False
        free = [self._state.pool[index] for index in range(len(self._state.pool))]
        begin = self._chance(len(free)) if free else 0
        for place in (*free[begin:], *free[:begin]):
            if place.topic in mine:
                if place.partition:
                    self._attempt(place, now_s)
            elif place.partition == 0 and not (limit and len(keys) >= limit):
                if attempts and not self._settings.greedy:
                    more = True
                    continue
                self._attempt(place, now_s)
                keys.append(place)
                attempts += 1
        return more

    def _holds_key(self, topic: str) -> bool:
        claim = self._state.claims.get(TopicPartition(topic, 0))
        return claim is not None and isinstance(claim.stage, Won | Active)

    def _chance(self, count: int) -> int:
        return min(int(self._state.draws.uniform(0.0, count)), count - 1)

    # -- one attempt

    def _attempt(self, place: TopicPartition, now_s: float) -> None:
        claim = self._state.new_claim(place, Claiming(self._state.patience_s(now_s)))
        self._state.shell.send_claiming(claim, now_s)
        self._state.schedule.plan_next(claim)

    def attempt_seen(
        self, claim: LocalClaim, frame: Frame, seen: FrameEffect, own: bool, now_s: float
    ) -> None:
        """Only our own frame decides how the race ended: frames before it were in time, frames after it are
        late.
        """
        claiming = isinstance(claim.stage, Claiming)
        kind = ClaimingPartition if claiming else Heartbeat
        if not own or not isinstance(frame, kind):
            return
        if claiming and frame_mark(frame) not in claim.sent:
            return  # of an earlier attempt: frames still under way may undo the state that the log shows now
        row = seen.after
        if row is not None and self._state.mine(row) and row is seen.before:
            self._renewal.forget(claim, now_s)  # an earlier attempt was won after all
            self.orphan_seen(claim.place, seen, now_s)
            return
        if row is None or not self._state.mine(row) or row is seen.before:
            self._lost(claim, now_s)
            return
        if self._state.topics.logs[claim.coordination].replaced(claim.key, *self._state.me):
            self._won(claim, frame, row.epoch, now_s)
            self._renewal.release(claim, ReleaseReason.UNWANTED, now_s)
            return
        if not claiming and seen.before is not None and seen.before.current_offset is not None:
            # The process we replace may have continued until now: the messages it finished are done.
            claim.offset_logged = max(claim.offset_logged, seen.before.current_offset)
        self._won(claim, frame, row.epoch, now_s)
        if self._state.ending:
            self._renewal.release(claim, ReleaseReason.TERMINATED, now_s)
        elif self._state.targets is not None and claim.place not in self._state.targets:
            self._renewal.release(claim, ReleaseReason.HANDED_OVER, now_s)

    def _lost(self, claim: LocalClaim, now_s: float) -> None:
        row = self._state.row(claim)
        owner = "nobody" if row is None else f"{row.client_id} (instance {row.instance_id})"
        self._state.shell.notify(Event.RACE_LOST, claim, text=f"{owner} holds it")
        self._renewal.forget(claim, now_s)

    def _won(self, claim: LocalClaim, frame: Frame, epoch: int, now_s: float) -> None:
        again = isinstance(claim.stage, Reclaiming)
        claim.epoch = epoch
        sent_s = claim.take_sent(frame)
        if sent_s is not None:
            claim.heartbeat_s, claim.lease_until_s = sent_s, sent_s + self._settings.lease_s
        self._state.shell.notify(Event.RECLAIMED if again else Event.CLAIMED, claim)
        claim.stage = Won(max(claim.lease_until_s, now_s))
        claim.beat_at_s = now_s + SETTLE_INTERVALS * self._state.interval_s
        self._state.schedule.plan_next(claim)
        self._state.shell.fetch_offsets(claim)
        if self._settings.whole_topic:
            self._state.wake_loop(now_s)

    def orphan_seen(self, place: TopicPartition, seen: FrameEffect, now_s: float) -> None:
        """The log names us the owner of something we gave up: a frame took its time. Give it back."""
        row = seen.after
        if self.leaving or row is None or row.current_offset is None:
            return
        won = Won(inf)
        claim = self._state.new_claim(place, won)
        claim.epoch, offset = row.epoch, self._state.shell.unmoved(place, row.current_offset)
        self._renewal.give_back(claim, won, ReleaseReason.UNWANTED, now_s, cooldown=True, offset=offset)

    # -- fast reclaim

    def reclaim(self, topic: str, now_s: float) -> None:
        """Take back what another process of this client held when it ended: by a heartbeat, with no race."""
        if topic in self._reclaimed:
            return
        self._reclaimed.add(topic)
        log = self._state.topics.log(topic)
        if not self._settings.fast_reclaim or self._state.paused or self._state.ending:
            return
        places = []
        for key, row in log.claims():
            claim = parse_claim_key(key)
            place = TopicPartition(claim.topic, claim.partition)
            if (
                claim.topic != topic
                or row.client_id != self._state.me[0]
                or row.instance_id == self._state.me[1]
                or row.current_offset is None
            ):
                continue
            if (
                self._state.topics.claimable(place)
                and place not in self._state.claims
                and log.is_live(row, now_s, self._state.wall.unix_s(now_s))
            ):
                places.append((place, row.current_offset))
        if self._settings.whole_topic:
            limit = self._settings.maximum_claims
            full = limit and sum(claim.partition == 0 for claim in self._state.claims) >= limit
            if full or not any(place.partition == 0 for place, _ in places):
                return
        for place, offset in sorted(places):
            attempt = self._state.new_claim(place, Reclaiming(self._state.patience_s(now_s)))
            self._state.shell.send_heartbeat(attempt, offset, now_s)
            self._state.schedule.plan_next(attempt)

    # -- two processes under one client id

    def own_client_seen(self, frame: Frame, log: LogView, at_ms: int, now_s: float) -> None:
        """Note a frame of the own client; if a newer process than this one writes, this one ends (D17).

        The first frame in the log says who is newer, so both come to the same answer. Frames that come all at
        once are not enough, nor the same frame twice: those of a process which ended may have been under way.
        A process that lives writes again later, and says that it is later. And the answer waits a moment,
        until all logs have been read as far.
        """
        instance = frame.instance_id
        born = (at_ms if at_ms >= 0 else frame.time_s * 1000, instance)
        birth = self._births.get(instance)
        if birth is None:
            if len(self._births) >= LIMIT_INSTANCES:
                oldest = min(
                    (each.at, name) for name, each in self._births.items() if name != self._state.me[1]
                )[1]
                del self._births[oldest]
            birth = self._births[instance] = _Birth(born, frame.time_s)
        else:
            birth.at = min(birth.at, born)
            if frame.time_s > birth.time_s:
                birth.time_s = frame.time_s
                birth.goes_on = (
                    birth.goes_on or born[0] - birth.at[0] >= ALIVE_INTERVALS * self._state.interval_s * 1000
                )
        if instance != self._state.me[1] and log.live and self.conflict_at_s == inf and self._newer(birth):
            self.conflict_at_s = now_s + SETTLE_INTERVALS * self._state.interval_s
            self._state.shell.notify(
                Event.RIVAL,
                text=f"another process (instance {instance}) writes under client id {self._state.me[0]}",
            )

    def _newer(self, rival: _Birth) -> bool:
        mine = self._births.get(self._state.me[1])
        return rival.goes_on and rival.at > ((self.began_ms, "") if mine is None else mine.at)

    def settle_conflict(self, now_s: float) -> None:
        self.conflict_at_s = inf
        newer = [
            name for name, birth in self._births.items() if name != self._state.me[1] and self._newer(birth)
        ]
        if newer:
            client_id, instance_id = self._state.me
            self.fail(
                InstanceConflictError(
                    f"group {self._settings.group_id}: a newer process (instance {newer[0]}) runs under"
                    f" client id {client_id}; this one (instance {instance_id}) has stopped. Give each"
                    " process a client id of its own"
                ),
                now_s,
            )
        else:
            self._state.wake_loop(now_s)

    # -- clocks

    def own_frame_seen(
        self, log: LogView, frame: Frame, sent_s: float | None, at_ms: int, now_s: float
    ) -> None:
        """Measure the own clock against the broker's, by a frame whose way took from *sent_s* to *now_s*
        (D3).
        """
        log.known = True
        if at_ms < 0 or sent_s is None:
            return
        limit_s = self._settings.skew_within_s
        least_s = frame.time_s - at_ms / 1000
        most_s = least_s + 1 + (now_s - sent_s)
        skewed = least_s > limit_s or most_s < -limit_s
        if skewed and not self._skewed:
            ahead = f"{least_s:.0f} s ahead of" if least_s > 0 else f"{-most_s:.0f} s behind"
            text = (
                f"this machine's clock is {ahead} the broker's, the limit is {limit_s:g} s: synchronize it"
                " (NTP)"
            )
            self._state.shell.notify(Event.CLOCK_SKEW, text=text)
            if not self._skew_known:
                self.fail(ClockSkewError(text), now_s)
        self._skew_known, self._skewed = True, skewed

    def check_clock_behind(self, log: LogView, now_s: float) -> None:
        """Before the first write, the log's last append time shows a slow clock."""
        behind_s = log.at_ms / 1000 - self._state.wall.unix_s(now_s)
        if log.at_ms >= 0 and behind_s > self._settings.skew_within_s:
            text = (
                f"this machine's clock is {behind_s:.0f} s behind the broker's, the limit is"
                f" {self._settings.skew_within_s:g} s: "
            )
            self.fail(ClockSkewError(text + "synchronize it (NTP)"), now_s)

    # -- pauses

    def pauses(self, now_s: float) -> None:
        """Look whether the group is paused; if so, give everything back at once."""
        unix_s = self._state.wall.unix_s(now_s)
        longest_s = max(
            (log.paused_for_s(now_s, unix_s) for log in self._state.topics.logs.values() if log.live),
            default=0.0,
        )
        before, self._state.paused = self._state.paused, longest_s > 0
        self._state.paused_until_s = now_s + longest_s + 0.001
        if self._state.paused:
            if not before:
                self._state.shell.notify(Event.PAUSED, text=f"for {longest_s:.0f} s")
            for claim in list(self._state.claims.values()):
                self._renewal.release(claim, ReleaseReason.PAUSED, now_s)
        elif before:
            self._state.shell.notify(Event.RESUMED)
            self._state.wake_loop(now_s)

    # -- the end

    def fail(self, error: HoldfastError, now_s: float) -> None:
        """Stop everything, release all claims, and fail with *error*."""
        if self._state.failed:
            return
        self._state.failed = self._state.ending = self.leaving = True
        self.end_at_s = self._state.patience_s(now_s)
        for claim in list(self._state.claims.values()):
            if self._renewal.keeps_back(claim):
                self._renewal.release(claim, ReleaseReason.TERMINATED, now_s, drain=False)
                continue
            self._renewal.stop(claim)
            row = self._state.row(claim)
            if (work := work_of(claim.stage)) is not None:
                self._state.shell.send_release(claim, work.tracker.current, now_s)
            elif row is not None and self._state.mine(row) and row.current_offset is not None:
                self._state.shell.send_release(
                    claim, self._state.shell.unmoved(claim.place, row.current_offset), now_s
                )
            self._renewal.forget(claim, now_s)
        self.conflict_at_s = inf
        self._state.shell.fail(error)
