"""One member of a balanced group as a pure machine: what it says on `holdfast.groups`, and which partitions
it should aim for.

It folds the group's announcements itself, from somewhere before the end of the log, and acts on what it has
read back only: its own announcements too. A shell gives it records, times and what the claims say; it answers
with values to append.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import inf
from typing import cast

from holdfast.core.claims.frames import check_id
from holdfast.core.engine.state.rows import Rows
from holdfast.core.groups.announcements import (
    SESSION_HIGH_MS,
    SESSION_LOW_MS,
    Announce,
    Announcement,
    Beat,
    Leave,
    Summary,
    blocks_of,
    decode,
    encode,
)
from holdfast.core.groups.assignors.assign import assignor_named
from holdfast.core.groups.assignors.types import NO_GENERATION, AssignorName
from holdfast.core.groups.codes import GroupCode
from holdfast.core.groups.membership import (
    Group,
    GroupsRow,
    LastSeen,
    NumberedAnnouncement,
    ReadProgress,
    apply,
    progress_key,
    seen_key,
    subscriptions,
    summary_of,
    target_of,
)
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.member import Draws
from holdfast.errors import AnnouncementError, ConfigError, MembershipError

BEATS_A_SESSION = 5.0
SUMMARY_S = 30.0
LOOKBACK_SUMMARIES = 10.0
ANSWER_S = 1.0
FOUND_AFTER_S = 1.5
RETRY_LOW_S, RETRY_HIGH_S = 0.05, 0.3
STAGGER_S = 0.2
LOOK_S = 0.1
SETTLE_S = 0.25
SETTLE_LIMIT_S = 3.0
FIRST_SETTLE_S = 1.0
FIRST_SETTLE_LIMIT_S = 6.0
STAGGER_SUMMARIES = 0.5

_REFUSED = {
    GroupCode.FENCED_INSTANCE_ID: (
        "a newer process has taken this member's place: it runs under the same client id or static id; stop"
        " one of them"
    ),
    GroupCode.INCONSISTENT_GROUP_PROTOCOL: (
        "the other members support none of this member's assignors; name one that all support"
    ),
    GroupCode.GROUP_MAX_SIZE_REACHED: "the group is full; remove members or use a second group",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerSettings:
    """One process's membership of a balanced group.

    *member_id* is new for every process, *client_id* the same after a restart, *static_id* (Kafka's
    group.instance.id) that of a member that comes back: it says no farewell, and has its partitions again
    when it returns within *session_s*. *pattern* is shown to others and joins what members of the same
    pattern find; the shell looks for topics that match.
    """

    group_id: str
    client_id: str
    member_id: str
    static_id: str | None = None
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assignors: tuple[str, ...] = (AssignorName.COOPERATIVE_STICKY,)
    session_s: float = 6.0

    def __post_init__(self) -> None:
        for field in ("group_id", "client_id", "member_id"):
            check_id(field, getattr(self, field))
        if self.static_id is not None:
            check_id("static_id", self.static_id)
        if bool(self.topics) == (self.pattern is not None):
            raise ConfigError(
                "a member of a balanced group names its topics or a pattern of topics, one of the two"
            )
        if not self.assignors:
            raise ConfigError("assignors is empty: name at least one")
        for name in self.assignors:
            assignor_named(name)
        if not SESSION_LOW_MS <= self.session_s * 1_000 <= SESSION_HIGH_MS:
            raise ConfigError(
                f"session_s is {self.session_s:g}: use {SESSION_LOW_MS / 1_000:g} to"
                f" {SESSION_HIGH_MS / 1_000:g}"
            )

    @property
    def beat_s(self) -> float:
        """Return how often a sign of life is given."""
        return self.session_s / BEATS_A_SESSION

    @property
    def lookback_s(self) -> float:
        """Return how far before the log's end to begin reading: a live group has announced its members
        there.
        """
        return LOOKBACK_SUMMARIES * SUMMARY_S


class Balancer:
    """The member's part in its group.

    Every input takes *now_s*, monotonic, and returns values to append to the group's partition, in order.
    """

    def __init__(self, settings: BalancerSettings, *, draws: Draws) -> None:
        self.settings = settings
        self.rows: dict[str, GroupsRow] = {}
        self.failure: MembershipError | None = None
        self.undecodable = 0
        self._draws = draws
        self._topics = tuple(sorted(set(settings.topics)))
        self._counts: tuple[tuple[str, int], ...] | None = None
        self._owned: frozenset[tuple[str, int]] = frozenset()
        self._caught_up = self._left = False
        self._announced: Announce | None = None
        self._read_back = False
        self._answer_by_s = self._beat_at_s = self._summary_at_s = self._look_at_s = inf
        self._moved_since_s = self._quiet_at_s = -inf
        self._aimed: frozenset[TopicPartition] = frozenset()
        self._known: tuple[Group | None, bool, frozenset[TopicPartition]] = (None, False, frozenset())

    # -- what it says about itself

    @property
    def group(self) -> Group | None:
        """Return the group as read so far; None before the first record about it."""
        return cast("Group | None", self.rows.get(self.settings.group_id))

    @property
    def progress(self) -> ReadProgress | None:
        """Return the progress of reading the group; None before the first record about it."""
        return cast("ReadProgress | None", self.rows.get(progress_key(self.settings.group_id)))

    @property
    def is_member(self) -> bool:
        """Return whether the group, known whole, has this member."""
        return self._place() is not None

    def _place(self) -> int | None:
        progress, group = self.progress, self.group
        if progress is None or not progress.complete or group is None:
            return None
        return next(
            (at for at, each in enumerate(group.members) if each.member_id == self.settings.member_id), None
        )

    def target(self) -> frozenset[TopicPartition]:
        """Return this member's part of the target; nothing as long as it is no member."""
        group, progress = self.group, self.progress
        complete = progress is not None and progress.complete
        if self._known[0] is not group or self._known[1] is not complete:
            mine = (target_of(group, self.settings.member_id) or frozenset()) if complete else frozenset()
            self._known = (group, complete, mine)
        return self._known[2]

    def topics(self) -> tuple[str, ...]:
        """Return the topics to work on: those named, or those that any member of the same pattern has
        found.
        """
        group = self.group
        if self.settings.pattern is None or group is None:
            return self._topics
        return subscriptions(group).get(self.settings.member_id, self._topics)

    def aim(self, now_s: float) -> frozenset[TopicPartition]:
        """Return the partitions to own: the target at the time when the group last came to rest.

        Rest is a quarter of a second without a join or change, and comes after three seconds at most; while
        no member owns anything it is a second, and comes after six, since a fleet's members are started
        together. So not everything moves with each member that joins, and no partition lies idle between the
        member that gives it back and the one that is to take it. Partitions of members that have left do not
        wait for rest: only free partitions move by that.
        """
        if now_s >= self._quiet_at_s:
            self._aimed = self.target()
        return self._aimed

    def wake_at_s(self) -> float:
        """Return when `tick` is due, or `aim` may say something new."""
        resting = self._quiet_at_s if self._aimed != self.target() else inf
        return min(self._answer_by_s, self._beat_at_s, self._summary_at_s, self._look_at_s, resting)

    # -- inputs

    def caught_up(self, now_s: float) -> list[bytes]:
        """The log has been read to where it ended when reading began."""
        if self._caught_up:
            return []
        self._caught_up = True
        return self._announce(now_s)

    def counts(self, counts: Mapping[str, int], now_s: float) -> list[bytes]:
        """These topics have so many partitions: the ones named, or all that match the pattern; not given
        or 0 means there is none.
        """
        topics = (
            self._topics
            if self.settings.pattern is None
            else tuple(sorted(topic for topic, count in counts.items() if count))
        )
        found = tuple((topic, counts[topic]) for topic in topics if counts.get(topic, 0) > 0)
        if (topics, found) == (self._topics, self._counts):
            return []
        self._topics, self._counts = topics, found
        return self._announce(now_s)

    def owned(self, places: Collection[tuple[str, int]], now_s: float) -> list[bytes]:
        """Set the claims held. The next sign of life announces them at the latest."""
        mine = frozenset((topic, partition) for topic, partition in places)
        if mine == self._owned:
            return []
        self._owned = mine
        if self._announced is not None and not self._left:
            self._beat_at_s = min(self._beat_at_s, now_s + RETRY_HIGH_S)
        return []

    def observe(self, offset: int, value: bytes | None, at_ms: int, now_s: float) -> list[bytes]:
        """A record of the group's partition was read, in offset order; *at_ms* is its append time."""
        try:
            announcement = decode(value)
        except AnnouncementError:
            self.undecodable += 1
            return []
        if announcement.group_id != self.settings.group_id:
            return []
        before = self.group
        code = apply(cast("Rows[GroupsRow]", self.rows), NumberedAnnouncement(offset, announcement), at_ms)
        group = self.group
        if (
            group is not None
            and (before is None or before.generation != group.generation)
            and not _have_only_gone(before, group)
        ):
            if now_s >= self._quiet_at_s:
                self._moved_since_s = now_s
            rest_s, limit_s = (
                (SETTLE_S, SETTLE_LIMIT_S)
                if self._has_owners(group)
                else (FIRST_SETTLE_S, FIRST_SETTLE_LIMIT_S)
            )
            self._quiet_at_s = min(now_s + rest_s, self._moved_since_s + limit_s)
        if self._left or not self._caught_up:
            return []
        self._look_later(at_ms, now_s)
        return self._react(announcement, code, now_s)

    def _has_owners(self, group: Group) -> bool:
        seen = (self.rows.get(seen_key(self.settings.group_id, each.member_id)) for each in group.members)
        return any(isinstance(each, LastSeen) and each.owned for each in seen)

    def _look_later(self, at_ms: int, now_s: float) -> None:
        """Plan to announce when the first session can be over: by the log a member is gone only when a later
        record is appended.
        """
        progress = self.progress
        if progress is None or not progress.complete or not progress.look_at_ms:
            self._look_at_s = inf
        else:
            self._look_at_s = (
                now_s + (progress.look_at_ms - at_ms) / 1_000 + self._draws.uniform(LOOK_S / 10, LOOK_S)
            )

    def _react(self, announcement: Announcement, code: GroupCode, now_s: float) -> list[bytes]:
        mine = not isinstance(announcement, Summary) and announcement.member_id == self.settings.member_id
        if mine and code in _REFUSED:
            self.failure = MembershipError(
                f"group {self.settings.group_id}, client {self.settings.client_id}: {_REFUSED[code]}", code
            )
            return []
        if mine and isinstance(announcement, Announce) and announcement == self._announced:
            self._read_back, self._answer_by_s = True, inf
        progress = self.progress
        if isinstance(announcement, Summary) and code is GroupCode.NONE:
            self._summary_at_s = now_s + SUMMARY_S * (1 + STAGGER_SUMMARIES * (self._place() or 0))
        elif isinstance(announcement, Summary) and self._summary_at_s < inf:
            self._summary_at_s = now_s + self._turn_s()  # another member is writing it
        elif self._read_back and progress is not None and not progress.complete and self._summary_at_s == inf:
            # No record since reading began lists the group's members. A member that knows them will write
            # one. If there is none, this member does, unless another is first.
            if progress.generation_seen <= 0 and not self._rank():
                return self._summarize(now_s)
            self._summary_at_s = now_s + (self._turn_s() if progress.generation_seen <= 0 else FOUND_AFTER_S)
        elif (
            isinstance(announcement, Announce)
            and announcement.generation == NO_GENERATION
            and not mine
            and self.is_member
        ):
            # A newcomer may have begun to read in the middle.
            self._summary_at_s = min(self._summary_at_s, now_s + self._turn_s())
        if self._read_back and progress is not None and progress.complete and not self.is_member:
            return self._announce(now_s)  # taken for gone, or not in the summary that counted
        return []

    def tick(self, now_s: float) -> list[bytes]:
        """Do the work that is due."""
        if self._left or not self._caught_up or self._announced is None:
            return []
        if now_s >= self._answer_by_s:
            return self._announce(now_s)
        out: list[bytes] = []
        if now_s >= self._summary_at_s:
            out += self._summarize(now_s)
        if now_s >= min(self._beat_at_s, self._look_at_s):
            self._beat_at_s, self._look_at_s = now_s + self.settings.beat_s, now_s + ANSWER_S
            owned = blocks_of(self._owned)
            if owned != self._announced.owned:
                return out + self._announce(now_s)
            out.append(encode(Beat(self.settings.group_id, self.settings.member_id, self._generation())))
        return out

    def leave(self, now_s: float) -> list[bytes]:
        """Say farewell, unless this member is static: it may come back."""
        joined, self._left = self._announced is not None and not self._left, True
        self._answer_by_s = self._beat_at_s = self._summary_at_s = self._look_at_s = inf
        if not joined or self.settings.static_id is not None:
            return []
        return [encode(Leave(self.settings.group_id, self.settings.member_id))]

    # -- announcements

    def _generation(self) -> int:
        group = self.group
        return NO_GENERATION if group is None or not self.is_member else group.generation

    def _announce(self, now_s: float) -> list[bytes]:
        """Announce this member, again and again until the log shows it."""
        if not self._caught_up or self._counts is None or self._left or self.failure is not None:
            return []
        wanted = self.settings
        self._announced = Announce(
            wanted.group_id,
            wanted.member_id,
            wanted.client_id,
            wanted.static_id,
            self._topics,
            wanted.pattern,
            self._counts,
            blocks_of(self._owned),
            self._generation(),
            wanted.assignors,
            int(wanted.session_s * 1_000),
        )
        self._read_back = False
        self._answer_by_s = now_s + ANSWER_S
        self._beat_at_s = now_s + wanted.beat_s
        return [encode(self._announced)]

    def _rank(self) -> int:
        """Return the number of members before this one in the part of the group that was read so far."""
        group = self.group
        ids = [] if group is None else [each.member_id for each in group.members]
        return ids.index(self.settings.member_id) if self.settings.member_id in ids else len(ids)

    def _turn_s(self) -> float:
        """Return how long to leave a summary to those before this member: all at once would read nothing
        but each other's.
        """
        return self._draws.uniform(RETRY_LOW_S, RETRY_HIGH_S) + STAGGER_S * self._rank()

    def _summarize(self, now_s: float) -> list[bytes]:
        """Write down the group.

        When something came in between it counts for nothing, and is written again after a moment.
        """
        self._summary_at_s = now_s + self._turn_s()
        summary = summary_of(self.rows, self.settings.group_id)
        return [] if summary is None else [encode(summary)]


def _have_only_gone(before: Group | None, after: Group) -> bool:
    """Return whether members have left since *before* and no member has joined."""
    return before is not None and {each.member_id for each in after.members} < {
        each.member_id for each in before.members
    }
