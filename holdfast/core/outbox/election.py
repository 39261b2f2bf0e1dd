"""Leader election on a Kafka consumer group, without Kafka: one `RoleElection` per role decides, a shell
moves its bytes.

Role *j* belongs to partition *j* of the leader topic. The group gives the partition to one process; that
alone makes it a *candidate*. It becomes *leader* when it reads its own claim back from the partition, and
stays leader while it reads its own heartbeats back in time (docs/PROTOCOL.md, "Election"). The offset of the
claim is the epoch of the leadership: it only grows, and everybody who reads the partition agrees on it.

No clock and no randomness in here: times are monotonic seconds handed in, the nonce comes from the shell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.errors import ConfigError

HEARTBEAT_TIMEOUT_S = 5.0
MINIMUM_TIMEOUT_S, MAXIMUM_TIMEOUT_S = 2.0, 600.0
"""The session is three timeouts, and brokers accept sessions of 6 s to 1800 s by default."""
SESSIONS_PER_TIMEOUT = 3
HEARTBEATS_PER_TIMEOUT = 5
LIMIT_DRAIN = 500
"""Records taken from the leader topic per pulse: a busy topic must not keep a process from its heartbeats."""
LIMIT_OUTSTANDING = 64
LIMIT_FRAME_BYTES = 1024
SEPARATOR = "%"

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NAME = re.compile(r"[^%\x00-\x1f]{1,200}")

FORCED_CONSUMER = (
    "group.id",
    "group.instance.id",
    "group.protocol",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "session.timeout.ms",
    "max.poll.interval.ms",
    "partition.assignment.strategy",
    "auto.offset.reset",
    "isolation.level",
)
FORCED_PRODUCER = (
    "delivery.timeout.ms",
    "message.timeout.ms",
    "linger.ms",
    "queue.buffering.max.ms",
    "transactional.id",
    "acks",
    "request.required.acks",
)


class Phase(StrEnum):
    """The state of one process in one role."""

    STANDBY = "standby"
    CANDIDATE = "candidate"
    LEADER = "leader"
    FENCED = "fenced"
    CLOSED = "closed"


LEGAL: Mapping[tuple[Phase, Phase], str] = {
    (Phase.STANDBY, Phase.CANDIDATE): "the group assigned the role's partition",
    (Phase.CANDIDATE, Phase.LEADER): "its own claim came back in time",
    (Phase.CANDIDATE, Phase.STANDBY): "the partition was revoked before the claim came back",
    (Phase.LEADER, Phase.FENCED): "no own heartbeat came back in time, or a newer claim was read",
    (Phase.LEADER, Phase.STANDBY): "the partition was revoked",
    (Phase.FENCED, Phase.LEADER): "a new claim of its own came back in time",
    (Phase.FENCED, Phase.STANDBY): "the partition was revoked",
    (Phase.STANDBY, Phase.CLOSED): "the process leaves",
    (Phase.CANDIDATE, Phase.CLOSED): "the process leaves",
    (Phase.LEADER, Phase.CLOSED): "the process leaves",
    (Phase.FENCED, Phase.CLOSED): "the process leaves",
}
"""Every change of phase there is, and what causes it; any other is a bug."""


class FenceReason(StrEnum):
    """Why a leader had to stop at once."""

    SILENCE = "silence"
    NEWER = "newer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """One term of one leader.

    *epoch* is the offset of the claim on the role's partition: later terms have larger ones.
    """

    role: int
    epoch: int
    leader_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquired:
    """This process leads the role from now on. Emitted once a term, before any action under it."""

    leadership: Leadership


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """The group wants the role back.

    The receiver may finish what it has begun, within its deadline: the successor waits for it.
    """

    leadership: Leadership


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced:
    """Another process may lead already. The receiver must stop at once."""

    leadership: Leadership
    reason: FenceReason


LeadershipEvent = Acquired | Revoked | Fenced


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionSettings:
    """The settings of an election. One that exists is valid: everything is checked on construction, before
    any input or output.

    >>> ElectionSettings(group_id="harvest", leader_topic="harvest.neli", name="a").session_timeout_s
    15.0
    """

    group_id: str
    leader_topic: str
    name: str
    elder_group: str = ""
    """The group of earlier releases, joined where this principal may not use *group_id*; empty for none."""
    roles: int = 1
    instance_id: str | None = None
    heartbeat_timeout_s: float = HEARTBEAT_TIMEOUT_S
    interop: bool = False
    """Share the group with goNELI members, which know only eager assignors; then every join of a standby
    moves the leader.
    """
    drain_s: float = 0.0
    """The most a revocation waits for the leader to finish; 0 means half of heartbeat_timeout_s, which is
    also the most.
    """
    consumer: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    producer: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, value in (("group_id", self.group_id), ("leader_topic", self.leader_topic)):
            if not _TOPIC.fullmatch(value) or value in (".", ".."):
                raise ConfigError(f"{what} is {value!r}; use 1 to 249 letters, digits, '.', '_' or '-'")
        if self.leader_topic.startswith("__"):
            raise ConfigError(
                f"leader_topic is {self.leader_topic!r}: brokers refuse writes to internal topics, so its"
                " leader would fence itself; choose another name"
            )
        for what, given in (("name", self.name), ("instance_id", self.instance_id)):
            if given is not None and not _NAME.fullmatch(given):
                raise ConfigError(
                    f"{what} is {given!r}; use 1 to 200 characters, none of them {SEPARATOR!r} or a control"
                    " character"
                )
        if not 1 <= self.roles <= 1000:
            raise ConfigError(f"roles is {self.roles}; an election has 1 to 1000")
        if self.interop and self.roles != 1:
            raise ConfigError(
                f"roles is {self.roles}; with goNELI members in the group there is one, that of partition 0"
            )
        if not MINIMUM_TIMEOUT_S <= self.heartbeat_timeout_s <= MAXIMUM_TIMEOUT_S:
            raise ConfigError(
                f"heartbeat_timeout_s is {self.heartbeat_timeout_s:g}; use {MINIMUM_TIMEOUT_S:g} to"
                f" {MAXIMUM_TIMEOUT_S:g}, since the session, {SESSIONS_PER_TIMEOUT} times as long, must lie"
                " within the broker's limits of 6 and 1800 s"
            )
        if not 0 <= self.drain_s <= self.heartbeat_timeout_s / 2:
            raise ConfigError(
                f"drain_s is {self.drain_s:g}; use at most half of heartbeat_timeout_s"
                f" ({self.heartbeat_timeout_s:g}): while one role drains, no heartbeat is sent for the others"
            )
        for properties, forced in ((self.consumer, FORCED_CONSUMER), (self.producer, FORCED_PRODUCER)):
            for name in properties:
                if name in forced:
                    raise ConfigError(f"cannot override configuration '{name}': the election depends on it")

    @property
    def session_timeout_s(self) -> float:
        return self.heartbeat_timeout_s * SESSIONS_PER_TIMEOUT

    @property
    def heartbeat_interval_s(self) -> float:
        return self.heartbeat_timeout_s / HEARTBEATS_PER_TIMEOUT

    @property
    def drain_limit_s(self) -> float:
        """Return the longest a revocation may wait."""
        return self.drain_s or self.heartbeat_timeout_s / 2


def sanitise(name: str) -> str:
    """Return *name* with what a topic or group must not contain replaced.

    >>> sanitise("reap%er 1/a")
    'reap_er_1_a'
    """
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:200] or "_"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRecord:
    """One record of the leader topic: a claim (no epoch yet) or a heartbeat of the term that a claim began.

    The first two fields are all that goNELI writes, and goNELI never reads them; the others identify the
    sender beyond doubt.

    >>> LeaderRecord(unix_ns=7, name="a", nonce="n", term=1, number=3, epoch=None).encode()
    b'7%a%n%1%3%'
    >>> LeaderRecord.decode(b'7%a%n%1%4%120').epoch
    120
    >>> LeaderRecord.decode(b'1476147600000000000%gopher') is None
    True
    """

    unix_ns: int
    name: str
    nonce: str
    term: int
    number: int
    epoch: int | None

    def encode(self) -> bytes:
        epoch = "" if self.epoch is None else str(self.epoch)
        return f"{self.unix_ns}%{self.name}%{self.nonce}%{self.term}%{self.number}%{epoch}".encode()

    @staticmethod
    def decode(value: bytes | None) -> LeaderRecord | None:
        """Return the beat that *value* is; None for anything else, which proves nothing."""
        if value is None or len(value) > LIMIT_FRAME_BYTES:
            return None
        try:
            unix_ns, name, nonce, term, number, epoch = value.decode().split(SEPARATOR)
            if not (name and nonce):
                return None
            return LeaderRecord(
                unix_ns=_count(unix_ns),
                name=name,
                nonce=nonce,
                term=_count(term),
                number=_count(number),
                epoch=_count(epoch) if epoch else None,
            )
        except ValueError:
            return None


def _count(digits: str) -> int:
    """Read a number as we write it: no sign, no blanks, no underscores, at most 19 digits."""
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise ValueError(digits)
    return int(digits)


class RoleElection:
    """One process's view of one role: pass it each input, act on the events it returns, send the records of
    `tick`.

    A lease runs from the moment the heartbeat that came back was *sent*, so that a process that was frozen,
    or cut off from the partition, has lost it before the group could have named another.
    """

    def __init__(
        self, role: int, *, name: str, nonce: str, heartbeat_timeout_s: float, heartbeat_interval_s: float
    ) -> None:
        self.role, self.name, self.nonce = role, name, nonce
        self._timeout_s, self._interval_s = heartbeat_timeout_s, heartbeat_interval_s
        self.phase = Phase.STANDBY
        self.foreign = 0
        """Records on the partition that were not this process's own."""
        self._leadership: Leadership | None = None
        self._lease_until_s = 0.0
        self._term = self._number = 0
        self._first_offset = 0
        self._sent: dict[int, float] = {}
        self._due_s = self._quiet_until_s = 0.0
        self._claiming = False
        self._epoch_seen = 0

    # -- what others ask

    def leadership(self, now_s: float) -> Leadership | None:
        """Return the term this process leads in at *now_s*, None when it does not, even if no call has ended
        the term.
        """
        return self._leadership if self.phase is Phase.LEADER and now_s < self._lease_until_s else None

    def lease_until_s(self) -> float:
        """Return when the lease ends unless another heartbeat comes back; 0 if this process does not lead."""
        return self._lease_until_s if self.phase is Phase.LEADER else 0.0

    def wake_at_s(self) -> float | None:
        """Return when `tick` has something to do next, None while nothing but an input can change that."""
        match self.phase:
            case Phase.LEADER:
                return min(self._due_s, self._lease_until_s)
            case Phase.CANDIDATE | Phase.FENCED:
                return max(self._due_s, self._quiet_until_s)
            case _:
                return None

    # -- what happens

    def assigned(self, offset_next: int, now_s: float) -> list[LeadershipEvent]:
        """The group gave the role's partition to this process; nothing below *offset_next*, its end,
        counts from here on.
        """
        assert self.phase is Phase.STANDBY, f"role {self.role} was assigned while {self.phase}"
        self._move(Phase.CANDIDATE)
        self._first_offset = offset_next
        self._reset(now_s)
        return []

    def revoked(self, now_s: float) -> list[LeadershipEvent]:
        """The group took the partition back, or this process lost it."""
        if self.phase in (Phase.STANDBY, Phase.CLOSED):
            return []
        held = self._held()
        self._move(Phase.STANDBY)
        self._sent.clear()
        return [Revoked(leadership=held)] if held else []

    def close(self, now_s: float) -> list[LeadershipEvent]:
        """The process leaves; nothing moves this machine any more."""
        if self.phase is Phase.CLOSED:
            return []
        held = self._held()
        self._move(Phase.CLOSED)
        self._sent.clear()
        return [Revoked(leadership=held)] if held else []

    def received(self, value: bytes | None, offset: int, now_s: float) -> list[LeadershipEvent]:
        """A record of the role's partition was read."""
        if self.phase in (Phase.STANDBY, Phase.CLOSED) or offset < self._first_offset:
            return []
        beat = LeaderRecord.decode(value)
        if beat is None or beat.nonce != self.nonce:
            self.foreign += 1
            return [] if beat is None else self._received_other(beat, offset, now_s)
        sent_at_s = self._sent.get(beat.number)
        if beat.term != self._term or sent_at_s is None:
            return []  # of a term that is over: what came late proves nothing
        for number in [number for number in self._sent if number <= beat.number]:
            del self._sent[number]
        until_s = sent_at_s + self._timeout_s
        if self.phase is Phase.LEADER:
            self._lease_until_s = max(self._lease_until_s, until_s)
            return self._check_lease(now_s)
        self._claiming = False
        if until_s <= now_s:
            return []  # it took longer than a lease lasts; the next claim may be faster
        return self._acquire(offset, until_s, now_s)

    def tick(self, now_s: float, unix_ns: int) -> tuple[list[LeadershipEvent], LeaderRecord | None]:
        """Return the events of the time that has passed, and the record to send now, if any."""
        events = self._check_lease(now_s)
        wake_at_s = self.wake_at_s()
        if wake_at_s is None or now_s < wake_at_s:
            return events, None
        if self.phase is not Phase.LEADER:
            # One claim a term: two of one term at different offsets would give others two opinions of its
            # epoch.
            self._term += 1
            self._sent.clear()
            self._claiming = True
            self._due_s = now_s + self._timeout_s / 2
        else:
            self._due_s = now_s + self._interval_s
        self._number += 1
        self._sent[self._number] = now_s
        while len(self._sent) > LIMIT_OUTSTANDING:
            del self._sent[next(iter(self._sent))]
        epoch = self._leadership.epoch if self.phase is Phase.LEADER and self._leadership else None
        return events, LeaderRecord(
            unix_ns=unix_ns,
            name=self.name,
            nonce=self.nonce,
            term=self._term,
            number=self._number,
            epoch=epoch,
        )

    def unsent(self, number: int, now_s: float) -> None:
        """The record with *number* was not written; a claim is sent again after an interval."""
        if self._sent.pop(number, None) is not None and self._claiming:
            self._due_s = now_s + self._interval_s

    # -- within

    def _move(self, to: Phase) -> None:
        assert (self.phase, to) in LEGAL, f"role {self.role} may not go from {self.phase} to {to}"
        self.phase = to
        if to is not Phase.LEADER:
            self._leadership = None

    def _held(self) -> Leadership | None:
        return self._leadership if self.phase is Phase.LEADER else None

    def _reset(self, now_s: float) -> None:
        self._sent.clear()
        self._due_s = self._quiet_until_s = now_s
        self._claiming = False

    def _acquire(self, epoch: int, until_s: float, now_s: float) -> list[LeadershipEvent]:
        self._move(Phase.LEADER)
        self._leadership = Leadership(
            role=self.role, epoch=epoch, leader_id=f"{self.name}/{self.nonce}/{epoch}"
        )
        self._lease_until_s, self._due_s = until_s, now_s + self._interval_s
        return [Acquired(leadership=self._leadership)]

    def _check_lease(self, now_s: float) -> list[LeadershipEvent]:
        if self.phase is Phase.LEADER and now_s >= self._lease_until_s:
            return self._fence(FenceReason.SILENCE, now_s)
        return []

    def _fence(self, reason: FenceReason, now_s: float) -> list[LeadershipEvent]:
        held = self._held()
        assert held is not None
        self._move(Phase.FENCED)
        self._reset(now_s)
        return [Fenced(leadership=held, reason=reason)]

    def _received_other(self, beat: LeaderRecord, offset: int, now_s: float) -> list[LeadershipEvent]:
        """A frame of another process. A newer epoch means that it leads, or is about to: step aside until it
        has been silent for a timeout.

        One of the two is a zombie, and only the group knows which. If it is this process, its partition is
        taken from it. If it is the other, whose claim was delayed on its way, it says no more, and this one
        claims again.
        """
        epoch = offset if beat.epoch is None else beat.epoch
        if self.phase is Phase.LEADER:
            assert self._leadership is not None
            if epoch <= self._leadership.epoch:
                return []
            events = self._fence(FenceReason.NEWER, now_s)
            self._quiet_until_s = now_s + self._timeout_s
            self._epoch_seen = epoch
            return events
        if self.phase is Phase.FENCED and now_s < self._quiet_until_s and epoch >= self._epoch_seen:
            self._quiet_until_s = now_s + self._timeout_s
        return []
