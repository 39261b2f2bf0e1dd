"""The whole coordination topic as an administrator sees it: every group's claims and pauses, folded here,
without any worker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self, cast

from holdfast.clients.claims.logs.claim_log import CoordinationLog, LogRecord
from holdfast.clients.topics.admin import Admin
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.claims.claim_keys import PAUSE_PREFIX, ClaimKey, parse_claim_key, route
from holdfast.core.claims.claim_rows import Claim, GuardedRow, Pause
from holdfast.core.claims.frames import (
    STALE_AFTER_S,
    ClaimingPartition,
    Frame,
    Heartbeat,
    ReleaseGroup,
    coordination_partition,
    decode,
    encode,
)
from holdfast.core.claims.guarded import fold_guarded
from holdfast.core.claims.staleness import is_paused, is_reserved
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import BrokerError, FrameError, GroupError

logger = logging.getLogger(__name__)

POLL_S = 0.05
LIMIT_NAMES = 20
LONGEST_SILENCE_S = STALE_AFTER_S
"""The longest silence of a live Go member."""


class GroupView:
    """Claims and pauses of all groups as of the last `refresh`, and the way to write frames.

    Use it in a `with`, from one thread.
    """

    def __init__(
        self, settings: Settings, *, timeout_s: float | None = None, clock: Clock = system_clock
    ) -> None:
        self._settings, self._clock = settings, clock
        self._timeout_s = settings.request_timeout_s if timeout_s is None else timeout_s
        self._log = CoordinationLog(settings, send_timeout_s=self._timeout_s)
        self._admin = Admin(settings, timeout_s=self._timeout_s, clock=clock)
        self._rows: dict[int, dict[str, GuardedRow]] = {}
        self._next: dict[int, int] = {}
        self._times_ms: dict[int, int] = {}
        self._capable: dict[tuple[str, str], bool] = {}
        self._sent = 0
        self.stale_after_s = settings.claim_stale_after_s
        self.unreadable = 0
        """Records that are no frames."""

    def __enter__(self) -> Self:
        self._log.open((), self._timeout_s)
        self._log.follow_partitions(set(range(self._log.partitions)))
        self._rows = {partition: {} for partition in range(self._log.partitions)}
        try:
            self.refresh()
        except BaseException:
            self._log.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._log.close()

    # -- reading

    @property
    def now_s(self) -> int:
        """Return the present second, by this machine's clock."""
        return self._clock.now_ms() // 1000

    def refresh(self) -> None:
        """Take in everything that is in the log by now.

        BrokerError when nothing comes for the time allowed.
        """
        topic = self._settings.coordination_topic
        ends = {
            partition: end
            for (_, partition), (_, end) in self._admin.offsets((topic, each) for each in self._rows).items()
        }
        progress_s = self._clock.monotonic_s()
        while missing := [partition for partition, end in ends.items() if self._next.get(partition, 0) < end]:
            if self.take(POLL_S):
                progress_s = self._clock.monotonic_s()
            elif self._clock.monotonic_s() - progress_s > self._timeout_s:
                raise BrokerError(
                    f"reading {topic}: nothing came for {self._timeout_s:g} s, partitions"
                    f" {', '.join(map(str, missing))} are not read to their ends; check the broker"
                )

    def take(self, timeout_s: float) -> bool:
        """Fold the records that came, waiting up to *timeout_s*; return whether there were any."""
        records = self._log.poll(timeout_s)
        for record in records:
            self._fold(record)
        moved = bool(records)
        for partition, end in self._log.ends.items():
            if self._next.get(partition, 0) < end:
                self._next[partition], moved = end, True
        return moved

    def _fold(self, record: LogRecord) -> None:
        self._next[record.partition] = record.offset + 1
        at_ms = self._times_ms[record.partition] = max(self._times_ms.get(record.partition, -1), record.at_ms)
        try:
            frame = decode(record.value)
        except FrameError:
            self.unreadable += 1
            return
        if isinstance(frame, Heartbeat | ClaimingPartition):
            self._capable[frame.client_id, frame.instance_id] = record.capable
        fold_guarded(cast(Rows[GuardedRow], self._rows[record.partition]), frame, at_ms, self.stale_after_s)

    def claims(self, group: str | None = None) -> dict[ClaimKey, Claim]:
        """Return the claims of *group*, or of all, in order."""
        found = dict[ClaimKey, Claim]()
        for partition, rows in self._rows.items():
            for text, row in rows.items():
                if isinstance(row, Claim) and route(text, len(self._rows)) == partition:
                    key = parse_claim_key(text)
                    if group is None or key.group_id == group:
                        found[key] = row
        return dict(sorted(found.items()))

    def pauses(self) -> dict[str, Pause]:
        """Return the pause of each group that is paused now; of several the latest counts."""
        latest: dict[str, Pause] = {}
        for rows in self._rows.values():
            for text, row in rows.items():
                if isinstance(row, Pause):
                    group = text.removeprefix(PAUSE_PREFIX)
                    if group not in latest or row.at_s >= latest[group].at_s:
                        latest[group] = row
        return {group: pause for group, pause in latest.items() if is_paused(pause, self.now_s)}

    def places(self, group: str) -> set[int]:
        """Return the coordination partitions that carry anything of *group*: a pause must be written to
        each."""
        claims = {coordination_partition(key.topic, len(self._rows)) for key in self.claims(group)}
        return claims | {partition for partition, rows in self._rows.items() if PAUSE_PREFIX + group in rows}

    def live(self, claim: Claim) -> bool:
        """Return whether *claim* has a live owner."""
        return claim.heartbeat_at_s is not None and self.now_s - claim.heartbeat_at_s < self.stale_after_s

    def silent(self, claim: Claim) -> bool:
        """Return whether *claim* has an owner that has become silent."""
        return claim.heartbeat_at_s is not None and not self.live(claim)

    def disobedient(self) -> dict[tuple[str, str], list[ClaimKey]]:
        """Return the live members, of any group, that would not understand a pause, as (client, instance),
        with what they hold.

        All groups count: a Go member reads the whole topic and stumbles over a ReleaseGroup of any
        (PROTOCOL.md#pauses). It may send heartbeats as seldom as the Go library's own interval allows,
        whatever ours is.
        """
        found: dict[tuple[str, str], list[ClaimKey]] = {}
        for key, claim in self.claims().items():
            member = (claim.client_id, claim.instance_id)
            if claim.heartbeat_at_s is None or is_reserved(claim) or self.obeys(*member):
                continue
            if self.now_s - claim.heartbeat_at_s < max(LONGEST_SILENCE_S, self.stale_after_s):
                found.setdefault(member, []).append(key)
        return found

    def insist_on_obedience(self) -> None:
        """Raise GroupError with the names of live members that would not understand a pause."""
        if found := self.disobedient():
            names = [
                f"{client}-{instance} ({_held(keys)})" for (client, instance), keys in sorted(found.items())
            ]
            shown = ", ".join(names[:LIMIT_NAMES]) + (
                f" and {len(names) - LIMIT_NAMES} more" if len(names) > LIMIT_NAMES else ""
            )
            raise GroupError(
                f"these live members of {self._settings.coordination_topic} do not understand a pause (Go"
                f" members, or ours with interop): {shown}. Stop them first; one that was killed counts as"
                f" live for {max(LONGEST_SILENCE_S, self.stale_after_s)} s"
            )

    def obeys(self, client_id: str, instance_id: str) -> bool:
        """Return whether this instance knows pauses, by its last frame."""
        return self._capable.get((client_id, instance_id), False)

    # -- writing

    def send(self, frames: Sequence[Frame], to: Iterable[int] | None = None) -> None:
        """Append *frames* and return when the log has all of them; a ReleaseGroup goes to each partition of
        *to*.

        BrokerError when some are not known to be there: then they may be or not, and `refresh` shows it.
        """
        waiting: dict[int, Frame] = {}
        for frame in frames:
            places = (
                list(to or ())
                if isinstance(frame, ReleaseGroup)
                else [coordination_partition(frame.topic, len(self._rows))]
            )
            for place in places:
                self._sent += 1
                waiting[self._sent] = frame
                self._log.send(self._sent, encode(frame), place)
        self._await(waiting)

    def _await(self, waiting: dict[int, Frame]) -> None:
        deadline_s, failed = self._clock.monotonic_s() + self._timeout_s + 1, list[str]()
        while waiting:
            for ack in self._log.acks():
                if waiting.pop(ack.send_id, None) is not None and ack.error is not None:
                    failed.append(ack.error)
            if waiting and self._clock.monotonic_s() > deadline_s:
                failed += [f"no acknowledgement within {self._timeout_s:g} s"] * len(waiting)
                break
            if waiting:
                self.take(0.002)
        if failed:
            raise BrokerError(
                f"{len(failed)} frames were not acknowledged by {self._settings.coordination_topic}:"
                f" {failed[0]}"
            )


def _held(keys: Sequence[ClaimKey]) -> str:
    """Return the claims in words, short.

    >>> _held([ClaimKey("g", "orders", 0), ClaimKey("g", "orders", 2), ClaimKey("h", "clicks", 0)])
    'g: orders/0,2; h: clicks/0'
    """
    places: dict[tuple[str, str], list[str]] = {}
    for key in sorted(keys):
        places.setdefault((key.group_id, key.topic), []).append(str(key.partition))
    return "; ".join(f"{group}: {topic}/{','.join(numbers)}" for (group, topic), numbers in places.items())
