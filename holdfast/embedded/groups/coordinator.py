"""Groups of the embedded cluster: requests that wait for others, and deadlines, around the model's steps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from itertools import count

from holdfast.core.kafka.topic_partition import Place
from holdfast.embedded.groups.group import CommittedOffset, EmbeddedGroup
from holdfast.embedded.groups.loading import load_groups
from holdfast.embedded.groups.modern_records import ModernImage, changes, image_of
from holdfast.embedded.internal_log import OFFSETS, Note, home_of, write_notes
from holdfast.embedded.protocol.table import NO_UUID
from holdfast.embedded.recurring import Recurring, set_apart
from holdfast.embedded.settings import EmbeddedSettings
from holdfast.embedded.topics.registry import TopicRegistry
from holdfast.models.consumer_group import ModernGroup, time_passes
from holdfast.models.group_coordinator.rules import next_deadline_ms, step
from holdfast.models.group_coordinator.types import (
    ClassicGroup,
    CoordinatorSettings,
    GroupReply,
    GroupState,
    LeaveGroup,
    Request,
    TimePasses,
)

SWEEP_S = 1.0
"""The interval at which modern groups are searched for members that are silent."""
LIMIT_HOMES = 100
"""The number of former members of a group that are still known, besides twice the present ones."""


class EmbeddedGroups:
    """All groups of a cluster. Each request has a number, by which the model names whom it answers.

    Sessions end by *steady_ms*, which never jumps; *now_ms* is the time that is written down.
    """

    def __init__(
        self,
        topics: TopicRegistry,
        told: EmbeddedSettings,
        now_ms: Callable[[], int],
        steady_ms: Callable[[], int],
    ) -> None:
        self._topics, self._now_ms, self._steady_ms = topics, now_ms, steady_ms
        self._settings = CoordinatorSettings(
            initial_delay_ms=told.group_initial_delay_ms,
            session_low_ms=told.group_min_session_ms,
            session_high_ms=told.group_max_session_ms,
            max_size=told.group_max_size,
        )
        self._groups: dict[str, EmbeddedGroup] = {}
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[GroupReply]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._sweeps = Recurring("the sweep of groups", SWEEP_S, self.sweep)

    def every(self) -> list[EmbeddedGroup]:
        """Return all groups."""
        return list(self._groups.values())

    def kept_bytes(self) -> int:
        """Return about how many bytes are kept of what clients said of groups."""
        return sum(each.kept_bytes() for each in self._groups.values())

    def allows_session(self, session_ms: int) -> bool:
        """Return whether members of classic groups may be silent for *session_ms*."""
        return self._settings.allows_session(session_ms)

    def get(self, group_id: str) -> EmbeddedGroup | None:
        return self._groups.get(group_id)

    def opened(self, group_id: str) -> EmbeddedGroup:
        """Return the group, made if there is none."""
        if group_id not in self._groups:
            self._groups[group_id] = EmbeddedGroup.empty(group_id, self._settings)
        return self._groups[group_id]

    def load(self) -> None:
        """Load the written records of groups, and begin to watch their members."""
        topic = self._topics.get(OFFSETS)
        for home in topic.partitions if topic is not None else ():
            load_groups(home, self._groups, self.opened, self._topics, self._steady_ms())
        for group in self._groups.values():
            self._set_timer(group)

    def forget_new(self, group_id: str) -> None:
        """Forget a group that was made for a request which was refused."""
        group = self._groups.get(group_id)
        if group is not None and group.is_new:
            del self._groups[group_id]

    def number(self) -> int:
        """Return the number of the next request."""
        return next(self._numbers)

    # -- classic groups

    def take(self, group: EmbeddedGroup, request: Request) -> GroupReply | asyncio.Future[GroupReply]:
        """Apply *request*; its reply, or who will have it once others have come."""
        own: GroupReply | None = None
        for reply in self._step(group, request):
            if reply.request == request.request:
                own = reply
            else:
                self._tell(reply)
        if own is not None:
            return own
        waiting = self._waiting[request.request] = asyncio.get_running_loop().create_future()
        waiting.add_done_callback(lambda _: self._waiting.pop(request.request, None))
        return waiting

    def _tell(self, reply: GroupReply) -> None:
        """Let one have its reply who waits for it, if it still does: the model answers the last request of a
        member alone.
        """
        waiting = self._waiting.pop(reply.request, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(reply)

    def forget_member(self, group_id: str, member_id: str) -> bool:
        """Forget a member of a classic group; return whether it was there."""
        group = self._groups.get(group_id)
        if group is None or group.classic.member(member_id) is None:
            return False
        self.take(group, LeaveGroup(request=self.number(), member_id=member_id))
        return True

    def _step(self, group: EmbeddedGroup, request: Request) -> list[GroupReply]:
        before = group.classic
        group.classic, replies = step(before, request, self._steady_ms())
        self._note(group, before)
        self._forget_homes(group)
        self._set_timer(group)
        return replies

    @staticmethod
    def _forget_homes(group: EmbeddedGroup) -> None:
        """Forget where those were who are not in the group any more."""
        classic = group.classic
        if len(group.homes) > LIMIT_HOMES + 2 * (len(classic.members) + len(classic.pending)):
            there = {each.member_id for each in classic.members} | dict(classic.pending).keys()
            group.homes = {name: home for name, home in group.homes.items() if name in there}

    def _set_timer(self, group: EmbeddedGroup) -> None:
        if (timer := self._timers.pop(group.group_id, None)) is not None:
            timer.cancel()
        due_ms = next_deadline_ms(group.classic)
        if due_ms is not None:
            wait_s = max(0, due_ms - self._steady_ms()) / 1000
            loop = asyncio.get_running_loop()
            self._timers[group.group_id] = loop.call_later(wait_s, self._pass_time, group)

    def _pass_time(self, group: EmbeddedGroup) -> None:
        if self._groups.get(group.group_id) is not group:
            return
        for reply in self._step(group, TimePasses()):
            self._tell(reply)
        if group.is_new:
            self.delete(group)

    def note_new(self, group: EmbeddedGroup) -> None:
        """Write a record of an empty group that a member was the first to ask for, as Kafka does."""
        empty = EmbeddedGroup.empty(group.group_id, self._settings)
        self._write(group, [_generation(empty, self._now_ms())])
        group.is_noted = True

    def _note(self, group: EmbeddedGroup, before: ClassicGroup) -> None:
        """Write a generation that is agreed on, or is empty, or in which a static member has a new id, as
        Kafka does.
        """
        after = group.classic
        agreed = after.state is GroupState.STABLE and before.state is not GroupState.STABLE
        left = after.state is GroupState.EMPTY and before.state is not GroupState.EMPTY
        same = before.state is after.state is GroupState.STABLE
        renamed = same and [each.member_id for each in before.members] != [
            each.member_id for each in after.members
        ]
        if agreed or left or renamed:
            self._write(group, [_generation(group, self._now_ms())])
            group.is_noted = True

    # -- modern groups

    def modern_changed(self, group: EmbeddedGroup, before: ModernGroup) -> None:
        """Write what has changed in a group of KIP-848 since *before*, as Kafka does."""
        group.note_changes(before)
        self._write_image(group, image_of(group, self._topics, self._now_ms()))

    def start(self) -> None:
        """Begin to look for members of modern groups that are silent, on the running loop."""
        self._sweeps.start()

    def sweep(self) -> None:
        """Have the members of modern groups be gone who were silent for a session."""
        for group in list(self._groups.values()):
            with set_apart(f"the sweep of group {group.group_id}", SWEEP_S):
                self._sweep(group)

    def _sweep(self, group: EmbeddedGroup) -> None:
        before = group.modern
        if before is not None:
            group.modern = time_passes(before, self._topics.counts(), self._steady_ms())
            if group.modern is not before:
                self.modern_changed(group, before)

    def become_modern(self, group: EmbeddedGroup) -> None:
        """Have the log say nothing of the classic group that it was."""
        if group.is_noted:
            self._write(group, [Note("GroupMetadata", {"group": group.group_id}, None)])
            group.is_noted = False

    def become_classic(self, group: EmbeddedGroup) -> None:
        """Remove the records of the modern group that it was, which is empty."""
        group.modern = None
        self._write_image(group, {})

    def _write_image(self, group: EmbeddedGroup, image: ModernImage) -> None:
        self._write(group, list(changes(group.group_id, group.written, image)))
        group.written = image

    # -- offsets

    def commit(self, group: EmbeddedGroup, offsets: Mapping[Place, CommittedOffset]) -> None:
        """Keep *offsets* as committed."""
        for place, offset in offsets.items():
            group.commit(place, offset)
        self._write(group, [self._offset(group, place, each) for place, each in offsets.items()])

    def commit_later(
        self, group: EmbeddedGroup, offsets: Mapping[Place, CommittedOffset], producer: tuple[int, int]
    ) -> bool:
        """Keep *offsets* until the transaction of *producer* (id, epoch) has an outcome; False where the log
        refuses them.
        """
        notes = [self._offset(group, place, each) for place, each in offsets.items()]
        home = home_of(self._topics, OFFSETS, group.group_id)
        if notes and not write_notes(home, notes, self._now_ms(), producer=producer):
            return False
        for place, offset in offsets.items():
            group.commit(place, offset, producer[0])
        return True

    def forget(self, group: EmbeddedGroup, places: list[Place]) -> None:
        """Forget committed offsets."""
        notes = [self._offset(group, each, None) for each in places if group.forget(each)]
        self._write(group, notes)

    def decided(self, home: int, producer_id: int, *, commit: bool) -> None:
        """Have the offsets of a transaction taken or dropped in the groups whose log is partition *home*."""
        for group in self._groups.values():
            if producer_id in group.pending and self._home(group) == home:
                group.decide(producer_id, commit=commit)

    def _home(self, group: EmbeddedGroup) -> int:
        return home_of(self._topics, OFFSETS, group.group_id).index

    def delete(self, group: EmbeddedGroup) -> None:
        """Delete an empty group."""
        self.forget(group, group.places())
        if group.modern is None:
            self._write(group, [Note("GroupMetadata", {"group": group.group_id}, None)])
        self._write_image(group, {})
        del self._groups[group.group_id]
        if (timer := self._timers.pop(group.group_id, None)) is not None:
            timer.cancel()

    def topics_deleted(self, topics: Collection[str]) -> None:
        """Forget what groups have committed in topics that are gone."""
        for group in self._groups.values():
            self.forget(group, [each for each in group.places() if each[0] in topics])

    def _offset(self, group: EmbeddedGroup, place: Place, offset: CommittedOffset | None) -> Note:
        key = {"group": group.group_id, "topic": place[0], "partition": place[1]}
        topic = self._topics.get(place[0])
        if offset is None:
            return Note("OffsetCommit", key, None)
        value = {
            "offset": offset.offset,
            "leader_epoch": offset.leader_epoch,
            "metadata": offset.metadata,
            "commit_timestamp": offset.at_ms,
            "topic_id": NO_UUID if topic is None else topic.topic_id,
        }
        return Note("OffsetCommit", key, value)

    def _write(self, group: EmbeddedGroup, notes: list[Note]) -> None:
        if notes:
            home = home_of(self._topics, OFFSETS, group.group_id)
            write_notes(home, notes, self._now_ms())

    def close(self) -> None:
        """Let nothing happen any more."""
        self._sweeps.close()
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for waiting in self._waiting.values():
            waiting.cancel()
        self._waiting.clear()


def _generation(group: EmbeddedGroup, now_ms: int) -> Note:
    classic = group.classic
    members = [
        {
            "member_id": each.member_id,
            "group_instance_id": each.instance_id,
            "client_id": group.homes[each.member_id].client_id,
            "client_host": group.homes[each.member_id].host,
            "rebalance_timeout": each.rebalance_ms,
            "session_timeout": each.session_ms,
            "subscription": each.subscription(classic.protocol),
            "assignment": each.assignment,
        }
        for each in classic.members
    ]
    value = {
        "protocol_type": group.protocol_type,
        "generation": classic.generation,
        "protocol": classic.protocol or None,
        "leader": classic.leader or None,
        "current_state_timestamp": now_ms,
        "members": members,
    }
    return Note("GroupMetadata", {"group": group.group_id}, value)
