"""Sets the offsets of a claim group: all of them or none, whenever its administrator dies
(PROTOCOL.md#pausing-and-resetting-a-group).
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from holdfast.clients.claims.logs.reset_log import ResetLog
from holdfast.clients.groups.records import Move, ResetProgress, ResetStep
from holdfast.clients.groups.view import GroupView
from holdfast.clock import Clock
from holdfast.core.claims.claim_keys import RESET_INSTANCE, ClaimKey
from holdfast.core.claims.claim_rows import Claim, is_of_another
from holdfast.core.claims.frames import UNMARKED, ClaimingPartition, Frame, Heartbeat, ReleaseGroup
from holdfast.core.claims.resets import (
    LIMIT_RESET_PARTITIONS,
    Aim,
    Decision,
    ResetAbort,
    ResetCommit,
    Spot,
    data_topic,
    final_mark,
    held_by_reset,
    release,
    reset_id_of,
)
from holdfast.errors import BrokerError, ConfigError, GroupError, HoldfastError, ResetStoppedError

logger = logging.getLogger(__name__)

LIMIT_FRAMES = 500
"""Frames written before the next look at the log."""
HEARTBEAT_INTERVALS = 0.25
"""Share of the interval after which the administrator renews what it holds."""
PAUSE_MARGIN_INTERVALS = 2.0
"""The pause lasts so many intervals longer than the reset may take: no member claims before it has ended."""
LOOK_S = 0.2


class Knowledge(NamedTuple):
    """The information that a reset needs besides the coordination topic.

    Both are asked with the partitions of the reset.
    """

    spots: Callable[[Mapping[ClaimKey, int | None]], Mapping[ClaimKey, Spot]]
    """Current offsets (None: unknown) to what new ones are made of."""
    commit: Callable[[Mapping[ClaimKey, int], Mapping[str, int | None]], None]
    """Writes new offsets, of the topics with these marks, to `__consumer_offsets` as well."""
    marks: Callable[[Collection[str]], Mapping[str, int | None]]
    """The topics that have these names (PROTOCOL.md#topics-that-are-made-again)."""


class ClaimReset:
    """One reset of one group.

    `run` ends with every partition at its new offset, or raises with every partition at its old one.
    """

    def __init__(
        self,
        view: GroupView,
        resets: ResetLog,
        knowledge: Knowledge,
        *,
        group: str,
        keys: Collection[ClaimKey],
        aim: Aim,
        client: str,
        deadline_s: float,
        tell: Callable[[ResetProgress], None],
        is_stopping: Callable[[], bool],
        clock: Clock,
    ) -> None:
        """*is_stopping* is asked again and again until the decision: True gives the reset up."""
        if len(keys) > LIMIT_RESET_PARTITIONS:
            raise ConfigError(
                f"a reset takes at most {LIMIT_RESET_PARTITIONS} partitions, this one has {len(keys)}: name"
                " topics by --topic"
            )
        self._view, self._resets, self._knowledge, self._clock = view, resets, knowledge, clock
        self._tell, self._is_stopping = tell, is_stopping
        self._group, self._keys, self._aim, self._client = group, sorted(keys), aim, client
        self._deadline_s, self._until_s = deadline_s, clock.monotonic_s() + deadline_s
        self.reset_id = uuid.uuid4().hex[:12]
        self._instance = RESET_INSTANCE + self.reset_id
        self._interval_s = view.stale_after_s / 2
        self._renewed_at_s = -self._interval_s
        self._places: set[int] = set()
        self._starts: Mapping[ClaimKey, Spot] = {}

    def run(self) -> list[Move]:
        """Carry out the reset; return the moves."""
        self._resets.ensure()
        rows = self._view.claims(self._group)
        # The start of a partition without a known offset; asked now, while nothing waits for the answer.
        self._starts = self._knowledge.spots(self._current(rows, self._marks()))
        try:
            self._pause()
            self._await_release()
            self._claim()
            commit = self._commit()
            self._tell(ResetProgress(step=ResetStep.CLAIMED, done=len(self._keys), total=len(self._keys)))
            self._heed_stop()
        except BaseException as error:
            self._give_up(error)
            raise
        decision = self._decide(commit)
        if isinstance(decision, ResetAbort):
            raise GroupError(
                f"reset of group {self._group}: {decision.client} gave it up because {decision.reason}; every"
                " partition keeps its offset"
            )
        self._tell(ResetProgress(step=ResetStep.DECIDED, done=len(self._keys), total=len(self._keys)))
        self._carry_out(commit)
        return self._moves(commit)

    # -- until the decision

    def _pause(self) -> None:
        lasts_s = self._deadline_s + PAUSE_MARGIN_INTERVALS * self._interval_s
        now_s = self._view.now_s
        self._places = self._view.places(self._group)
        pause = ReleaseGroup(now_s, self._instance, self._client, self._group, now_s + int(lasts_s) + 1)
        self._view.send([pause], self._places)
        self._tell(ResetProgress(step=ResetStep.PAUSED, total=len(self._keys)))

    def _await_release(self) -> None:
        """Return when no member of the group holds anything: those that are paused work on nothing."""
        while True:
            self._heed_stop()
            self._view.refresh()
            holders = {
                key: claim for key, claim in self._view.claims(self._group).items() if self._view.live(claim)
            }
            self._refuse_others(holders)
            if not holders:
                return
            names = _names(holders.values())
            self._tell(ResetProgress(step=ResetStep.WAITING, done=0, total=len(holders), waiting_for=names))
            self._insist(f"{', '.join(names)} still hold {len(holders)} partitions")
            self._view.take(LOOK_S)

    def _claim(self) -> None:
        reported = -1
        while True:
            self._heed_stop()
            self._view.refresh()
            rows = self._view.claims(self._group)
            mine = [key for key in self._keys if self._is_mine(rows.get(key))]
            self._refuse_others({key: rows[key] for key in self._keys if key in rows})
            if len(mine) != reported:
                reported = len(mine)
                self._tell(ResetProgress(step=ResetStep.CLAIMING, done=reported, total=len(self._keys)))
            if len(mine) == len(self._keys):
                self._renew(rows, due=any(rows[key].current_offset is None for key in mine))
                return
            self._renew(rows)
            free = [
                key
                for key in self._keys
                if key not in rows or not (self._is_mine(rows[key]) or self._view.live(rows[key]))
            ]
            if not free:
                names = _names(
                    rows[key] for key in self._keys if key in rows and not self._is_mine(rows[key])
                )
                self._insist(f"{', '.join(names)} hold the partitions to reset")
                self._view.take(LOOK_S)
                continue
            self._insist(f"{len(free)} partitions could not be claimed")
            now_s = self._view.now_s
            self._view.send(
                [ClaimingPartition(now_s, self._instance, self._client, *key) for key in free[:LIMIT_FRAMES]]
            )

    def _renew(self, rows: Mapping[ClaimKey, Claim], *, due: bool = False) -> None:
        """Renew the held claims, at the old offsets, so that members do not take this reset for dead."""
        now_s = self._clock.monotonic_s()
        if not due and now_s - self._renewed_at_s < HEARTBEAT_INTERVALS * self._interval_s:
            return
        self._renewed_at_s, at_s = now_s, self._view.now_s
        frames = [
            Heartbeat(
                at_s,
                self._instance,
                self._client,
                *key,
                self._old(rows[key], key),
                rows[key].topic_mark or UNMARKED,
            )
            for key in self._keys
            if key in rows and self._is_mine(rows[key])
        ]
        for some in _chunks(frames):
            self._view.send(some)

    def _commit(self) -> ResetCommit:
        """Return the decision: old offsets as members left them, new ones as they are found now."""
        self._view.insist_on_obedience()  # a disobedient member may have come since
        rows = self._view.claims(self._group)
        old = {key: self._old(rows[key], key) for key in self._keys}
        marks = self._marks()
        another = {key for key, offset in self._current(rows, marks).items() if offset is None}
        spots = self._knowledge.spots({key: None if key in another else at for key, at in old.items()})
        if self._marks() != marks:
            raise GroupError(
                f"reset of group {self._group}: a topic was deleted and made again meanwhile; every partition"
                " keeps its offset. Try again"
            )
        offsets: dict[str, list[tuple[int, int, int]]] = {}
        for key in self._keys:
            offsets.setdefault(key.topic, []).append((key.partition, old[key], self._aim.offset(spots[key])))
        return ResetCommit(
            reset_id=self.reset_id,
            group=self._group,
            client=self._client,
            at_s=self._view.now_s,
            offsets={topic: tuple(moves) for topic, moves in offsets.items()},
            topic_marks={topic: mark for topic, mark in marks.items() if mark is not None},
        )

    def _marks(self) -> Mapping[str, int | None]:
        return self._knowledge.marks({data_topic(key.topic) for key in self._keys})

    def _current(
        self, rows: Mapping[ClaimKey, Claim], marks: Mapping[str, int | None]
    ) -> dict[ClaimKey, int | None]:
        """Return the offset of each partition in the topic that is there; None where there is none."""
        return {
            key: None
            if key not in rows or is_of_another(rows[key], marks.get(data_topic(key.topic)))
            else rows[key].current_offset
            for key in self._keys
        }

    def _give_up(self, error: BaseException) -> None:
        """Nothing is decided: give every claim back at its old offset, and let the group continue."""
        try:
            self._view.refresh()
            rows = {
                key: claim for key, claim in self._view.claims(self._group).items() if self._is_mine(claim)
            }
            at_s = self._view.now_s
            for some in _chunks(
                [
                    release(key, claim, self._old(claim, key), at_s, claim.topic_mark)
                    for key, claim in rows.items()
                ]
            ):
                self._view.send(some)
            self._resume()
        except HoldfastError as second:
            logger.warning(
                "reset %(reset)s of group %(group)s not cleaned up: %(reason)s",
                {"reset": self.reset_id, "group": self._group, "reason": str(second)},
            )
            error.add_note(
                f"cleaning up failed too ({second}); `holdfast groups resume {self._group}` does it later,"
                " old offsets stay"
            )

    # -- the decision, and after it

    def _decide(self, commit: ResetCommit) -> Decision:
        """Return the decision that counts.

        When it is unknown whether the commit was written, an abort is: the first of both is the decision.
        """
        try:
            return self._resets.decide(commit)
        except HoldfastError as error:
            reason = f"the commit was not acknowledged: {error}"
        abort = ResetAbort(
            reset_id=self.reset_id,
            group=self._group,
            client=self._client,
            at_s=self._view.now_s,
            reason=reason,
        )
        while True:
            try:
                decision = self._resets.decide(abort)
                break
            except BrokerError as error:
                if self._clock.monotonic_s() > self._until_s:
                    raise GroupError(
                        f"reset of group {self._group}: whether it was decided is unknown, since {error}. All"
                        " partitions stay held; when the broker answers again, `holdfast groups resume"
                        f" {self._group}` finds out and carries on"
                    ) from error
        if isinstance(decision, ResetAbort):
            self._give_up(GroupError(reason))
        return decision

    def _carry_out(self, commit: ResetCommit) -> None:
        """Give every partition back with its new offset.

        From here on nothing but time is lost by failing: see `settle`.
        """
        new = {
            ClaimKey(self._group, topic, partition): at
            for topic, moves in commit.offsets.items()
            for partition, _, at in moves
        }
        try:
            self._knowledge.commit(new, commit.topic_marks)
        except HoldfastError as error:
            logger.info(
                "offsets of group %(group)s not committed to __consumer_offsets: %(reason)s",
                {"group": self._group, "reason": str(error)},
            )
        while True:
            try:
                self._view.refresh()
                rows = self._view.claims(self._group)
                mine = [key for key in self._keys if self._is_mine(rows.get(key))]
                self._tell(
                    ResetProgress(
                        step=ResetStep.MOVING, done=len(self._keys) - len(mine), total=len(self._keys)
                    )
                )
                if not mine:
                    break
                at_s = self._view.now_s
                self._view.send(
                    [
                        release(key, rows[key], new[key], at_s, final_mark(commit, key, rows[key]))
                        for key in mine[:LIMIT_FRAMES]
                    ]
                )
            except BrokerError as error:
                if self._clock.monotonic_s() > self._until_s:
                    raise GroupError(
                        f"reset of group {self._group} is decided, but not every partition could be given"
                        f" back: {error}. `holdfast groups resume {self._group}` finishes it"
                    ) from error
        self._resume()
        self._tell(ResetProgress(step=ResetStep.RESUMED, done=len(self._keys), total=len(self._keys)))

    def _resume(self) -> None:
        self._view.send(
            [ReleaseGroup(self._view.now_s, self._instance, self._client, self._group, 0)], self._places
        )

    # -- parts

    def _moves(self, commit: ResetCommit) -> list[Move]:
        return [
            Move(group=self._group, topic=topic, partition=partition, current_offset=old, new_offset=new)
            for topic, moves in commit.offsets.items()
            for partition, old, new in moves
        ]

    def _is_mine(self, claim: Claim | None) -> bool:
        return (
            claim is not None
            and claim.heartbeat_at_s is not None
            and claim.instance_id == self._instance
            and claim.client_id == self._client
        )

    def _old(self, claim: Claim, key: ClaimKey) -> int:
        return self._starts[key].start if claim.current_offset is None else claim.current_offset

    def _refuse_others(self, rows: Mapping[ClaimKey, Claim]) -> None:
        for key, claim in rows.items():
            other = held_by_reset(claim)
            if other is not None and other != reset_id_of(self._instance):
                raise GroupError(
                    f"reset of group {self._group}: reset {other} by {claim.client_id} holds"
                    f" {key.topic}/{key.partition}: wait for it, or end it by `holdfast groups resume"
                    f" {self._group} --force`"
                )

    def _insist(self, what: str) -> None:
        if self._clock.monotonic_s() > self._until_s:
            raise GroupError(
                f"reset of group {self._group}: after {self._deadline_s:g} s {what}; every partition keeps"
                " its offset. Stop those members, or allow more time by --wait"
            )

    def _heed_stop(self) -> None:
        if self._is_stopping():
            raise ResetStoppedError(
                f"reset of group {self._group} was stopped before it was decided: every partition keeps its"
                " offset, and the group goes on"
            )


def _names(claims: Collection[Claim] | Iterator[Claim]) -> tuple[str, ...]:
    return tuple(sorted({f"{claim.client_id}-{claim.instance_id}" for claim in claims}))


def _chunks(frames: Sequence[Frame]) -> Iterator[Sequence[Frame]]:
    return (frames[start : start + LIMIT_FRAMES] for start in range(0, len(frames), LIMIT_FRAMES))
