"""Administration of groups: look at them, pause and resume them, set their offsets.

Claim groups, kept in the coordination topic, and the broker's own groups alike. No worker is needed: the
topic is folded here.

    with GroupAdmin(settings) as admin:
        plan = admin.plan_reset("shop", Aim(Where.EARLIEST))
        admin.reset_offsets(plan)
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from holdfast.clients.claims.logs.reset_log import ResetLog, settle
from holdfast.clients.groups.broker import BrokerGroups
from holdfast.clients.groups.positions import claimed_ways, positions
from holdfast.clients.groups.records import (
    GroupDescription,
    GroupKind,
    GroupPosition,
    GroupSurvey,
    MemberDescription,
    Move,
    ResetProgress,
    ShownState,
)
from holdfast.clients.groups.reset import ClaimReset, Knowledge
from holdfast.clients.groups.view import GroupView
from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.log_ends import GroupOffsets
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.claims.claim_keys import ClaimKey
from holdfast.core.claims.claim_rows import Claim, Pause, is_of_another
from holdfast.core.claims.frames import ReleaseGroup, check_id
from holdfast.core.claims.resets import RESETS_TOPIC, Aim, Scope, data_topic, held_by_reset
from holdfast.core.kafka.topic_partition import Place
from holdfast.errors import ConfigError, GroupError

CLIENT_ID = "holdfast-admin"
RESET_DEADLINE_S = 900.0
"""The time that a reset waits for members by default; the Go library's own limit."""
LIMIT_PAUSE_S = 30 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetPlan:
    """The effect that a reset would have at present.

    For a claim group everything is computed again once no member can move its offset.
    """

    group: str
    kind: GroupKind
    aim: Aim
    moves: tuple[Move, ...]


class GroupAdmin:
    """Looks at groups and changes them. Use it in a `with`, from one thread; each look is as of its call."""

    def __init__(
        self,
        settings: Settings,
        *,
        client: str = CLIENT_ID,
        resets_topic: str = RESETS_TOPIC,
        timeout_s: float | None = None,
        clock: Clock = system_clock,
    ) -> None:
        check_id("client", client)
        timeout_s = settings.request_timeout_s if timeout_s is None else timeout_s
        self._settings, self._client, self._clock, self._timeout_s = settings, client, clock, timeout_s
        self._admin = Admin(settings, timeout_s=timeout_s, clock=clock)
        self._broker = BrokerGroups(settings, timeout_s=timeout_s)
        self._offsets = GroupOffsets(settings, timeout_s=timeout_s, clock=clock)
        self._resets = ResetLog(settings, topic=resets_topic, timeout_s=timeout_s, clock=clock)
        self._view: GroupView | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        view, self._view = self._view, None
        if view is not None:
            view.__exit__(kind, error, traceback)

    # -- looking

    def list(self) -> tuple[GroupDescription, ...]:
        """Return all groups by name.

        A claim group also commits to the broker; that shadow is left out while it has no members.
        """
        return self.survey().groups

    def survey(self) -> GroupSurvey:
        """Return the groups as `list` does, with the owner of each partition."""
        view = self._look()
        found = [] if view is None else _claim_groups(view)
        shadows = {group.group for group in found}
        states, unlisted = self._broker.states()
        wanted = [
            name for name, state in states.items() if name not in shadows or state not in ("Empty", "Dead")
        ]
        owners = {} if view is None else _claim_owners(view)
        for group, (described, members) in self._broker.describe_all(wanted).items():
            found.append(described)
            owners[GroupKind.CONSUMER, group] = {
                place: member.consumer_id for member in members for place in member.assignment
            }
        return GroupSurvey(
            groups=tuple(sorted(found, key=lambda group: (group.group, group.kind))),
            owners=owners,
            unlisted=unlisted,
        )

    def state(self, group: str, kind: GroupKind | None = None) -> GroupDescription:
        """Return one group; GroupError when there is none of that name and kind."""
        if self._kind(group, kind) is GroupKind.CLAIM:
            view = self._opened()
            return _claim_group(view, group, view.claims(group), view.pauses().get(group))
        return self._described(group)[0]

    def members(self, group: str, kind: GroupKind | None = None) -> tuple[MemberDescription, ...]:
        """Return the live members of a group: those of a claim group that hold something."""
        if self._kind(group, kind) is GroupKind.CONSUMER:
            return self._described(group)[1]
        view = self._opened()
        held: dict[tuple[str, str], list[tuple[str, int]]] = {}
        for key, claim in view.claims(group).items():
            if view.live(claim):
                held.setdefault((claim.client_id, claim.instance_id), []).append((key.topic, key.partition))
        return tuple(
            MemberDescription(
                group=group,
                consumer_id=f"{client}-{instance}",
                host=None,  # frames do not name it
                client_id=client,
                assignment=tuple(places),
                obeys_pause=view.obeys(client, instance),
            )
            for (client, instance), places in sorted(held.items())
        )

    def describe(
        self, group: str, kind: GroupKind | None = None, places: Collection[Place] | None = None
    ) -> tuple[GroupPosition, ...]:
        """Return a line for each partition the group has anything to do with, or for those of *places*, in
        order; lanes after that of their partition.
        """
        return (
            self._describe_claims(group, places)
            if self._kind(group, kind) is GroupKind.CLAIM
            else self._describe_consumers(group, places)
        )

    def places(self, group: str, kind: GroupKind | None = None) -> tuple[Place, ...]:
        """Return the partitions that `describe` lists, in order, without asking where these end."""
        if self._kind(group, kind) is GroupKind.CLAIM:
            claims = self._opened().claims(group)
            return tuple(sorted({(data_topic(key.topic), key.partition) for key in claims}))
        return tuple(sorted({*self._broker.committed(group), *self._owners(group)}))

    # -- pausing

    def pause(self, group: str, for_s: float) -> Pause:
        """Pause a claim group: every member gives its claims back within a heartbeat interval, and none
        claims until the time is over.
        """
        if not 1 <= for_s <= LIMIT_PAUSE_S:
            raise ConfigError(f"a pause of {for_s:g} s: use 1 s to {LIMIT_PAUSE_S // 86_400} days")
        view = self._claim_view(group, "paused")
        view.insist_on_obedience()
        now_s = view.now_s
        frame = ReleaseGroup(now_s, uuid.uuid4().hex[:8], self._client, group, now_s + round(for_s))
        view.send([frame], view.places(group))
        return Pause(frame.msg_expire_time_s, now_s, frame.client_id, frame.instance_id)

    def resume(self, group: str, *, force: bool = False) -> int:
        """Lift the pause of a claim group and settle resets that did not end; return how many partitions
        those held.

        A reset whose administrator is still alive is in the way (GroupError), unless *force* ends it.
        """
        view = self._claim_view(group, "resumed")
        freed = self.settle(group, force=force)
        if left := self._reset_holds(view, group):
            key, claim = next(iter(left.items()))
            raise GroupError(
                f"group {group}: reset {held_by_reset(claim)} by {claim.client_id} is under way and holds"
                f" {len(left)} partitions, {key.topic}/{key.partition} first: wait for it, or end it with"
                " --force"
            )
        view.insist_on_obedience()
        view.send(
            [ReleaseGroup(view.now_s, uuid.uuid4().hex[:8], self._client, group, 0)], view.places(group)
        )
        return freed

    def settle(self, group: str, *, force: bool = False) -> int:
        """Carry out or give up what unfinished resets hold of a group; return how many partitions that freed.

        One that was decided is carried out. One that was not is given up when its administrator has fallen
        silent, or with *force*.
        """
        view = self._opened()
        held = self._reset_holds(view, group)
        if not held:
            return 0
        spots = self._offsets.spots(
            {key: None for key, claim in held.items() if claim.current_offset is None}, None
        )
        frames = settle(
            self._resets,
            held,
            client=self._client,
            now_s=view.now_s,
            is_silent=lambda claim: force or view.silent(claim),
            start=lambda key: spots[key].start,
        )
        view.send(frames)
        view.refresh()
        return len(frames)

    # -- resetting

    def plan_reset(
        self, group: str, aim: Aim, scope: Scope | None = None, kind: GroupKind | None = None
    ) -> ResetPlan:
        """Return the effect that a reset would have at present; changes nothing.

        GroupError when nothing is meant by *scope*.
        """
        chosen = self._kind(group, kind)
        current = (
            self._claim_offsets(group, scope or Scope())
            if chosen is GroupKind.CLAIM
            else self._consumer_offsets(group, scope or Scope())
        )
        if not current:
            raise GroupError(
                f"group {group} has nothing to do with the partitions named: see `holdfast groups describe"
                f" {group}`"
            )
        spots = self._offsets.spots(current, aim.at_ms)
        moves = tuple(
            Move(
                group=group,
                topic=key.topic,
                partition=key.partition,
                current_offset=offset,
                new_offset=aim.offset(spots[key]),
            )
            for key, offset in sorted(current.items())
        )
        return ResetPlan(group=group, kind=chosen, aim=aim, moves=moves)

    def reset_offsets(
        self,
        plan: ResetPlan,
        *,
        deadline_s: float = RESET_DEADLINE_S,
        tell: Callable[[ResetProgress], None] = lambda progress: None,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> tuple[Move, ...]:
        """Carry *plan* out and return the moves: all of them, or GroupError and nothing.

        A claim group is paused for it and resumes afterwards; *deadline_s* is how long to wait for its
        members. Once *is_stopping*, a reset that is not decided is given up, and one that is continues to its
        end. The broker's groups must be empty, as Kafka's own tool demands.
        """
        if plan.kind is GroupKind.CONSUMER:
            return self._reset_consumers(plan)
        view = self._claim_view(plan.group, "reset")
        view.insist_on_obedience()
        self.settle(plan.group)
        keys = [ClaimKey(move.group, move.topic, move.partition) for move in plan.moves]
        knowledge = Knowledge(
            spots=lambda current: self._offsets.spots(current, plan.aim.at_ms),
            commit=lambda new, marks: self._offsets.commit(plan.group, new, marks),
            marks=self._offsets.marks,
        )
        reset = ClaimReset(
            view,
            self._resets,
            knowledge,
            group=plan.group,
            keys=keys,
            aim=plan.aim,
            client=self._client,
            deadline_s=deadline_s,
            tell=tell,
            is_stopping=is_stopping,
            clock=self._clock,
        )
        return tuple(reset.run())

    def _reset_consumers(self, plan: ResetPlan) -> tuple[Move, ...]:
        group, members = self._described(plan.group)
        if group.state != "Empty":
            names = ", ".join(f"{member.consumer_id} at {member.host}" for member in members[:20])
            raise GroupError(
                f"group {plan.group} is {group.state}: its offsets can be reset only while it is empty; stop"
                f" {names or 'its members'}"
            )
        self._offsets.commit(
            plan.group,
            {ClaimKey(move.group, move.topic, move.partition): move.new_offset for move in plan.moves},
            {},
        )
        return plan.moves

    # -- parts: views

    def _look(self) -> GroupView | None:
        """Return the coordination topic as of now; None where there is none."""
        if self._view is not None:
            self._view.refresh()
            return self._view
        topic = self._settings.coordination_topic
        if self._admin.cluster([topic]).partitions(topic) is None:  # it may be made later
            return None
        self._view = GroupView(self._settings, timeout_s=self._timeout_s, clock=self._clock).__enter__()
        return self._view

    def _opened(self) -> GroupView:
        view = self._look()
        assert view is not None, "a claim group is one that was found in the coordination topic"
        return view

    def _kind(self, group: str, kind: GroupKind | None) -> GroupKind:
        view = None if kind is GroupKind.CONSUMER else self._look()
        if view is not None and (view.claims(group) or group in view.pauses()):
            return GroupKind.CLAIM
        if kind is GroupKind.CLAIM:
            raise GroupError(
                f"no client has ever claimed a partition for group {group}: `holdfast groups list` shows the"
                " groups"
            )
        return GroupKind.CONSUMER

    def _claim_view(self, group: str, done: str) -> GroupView:
        if self._kind(group, None) is not GroupKind.CLAIM:
            self._described(group)
            raise GroupError(
                f"group {group} is kept by the broker: only claim groups can be {done}; stop its consumers"
                " instead"
            )
        return self._opened()

    def _described(self, group: str) -> tuple[GroupDescription, tuple[MemberDescription, ...]]:
        found = self._broker.describe(group)
        if found is None:
            raise GroupError(f"there is no group {group}: `holdfast groups list` shows the groups")
        return found

    def _reset_holds(self, view: GroupView, group: str) -> dict[ClaimKey, Claim]:
        return {key: claim for key, claim in view.claims(group).items() if held_by_reset(claim) is not None}

    # -- parts: claim groups

    def _describe_claims(self, group: str, places: Collection[Place] | None) -> tuple[GroupPosition, ...]:
        view = self._opened()
        claims = view.claims(group)
        if places is not None:
            claims = {
                key: claim
                for key, claim in claims.items()
                if (data_topic(key.topic), key.partition) in places
            }
        bounds = self._offsets.bounds((data_topic(key.topic), key.partition) for key in claims)
        marks = self._offsets.marks_there({topic for topic, _ in bounds})
        return positions(
            group, claims, bounds, marks, now_s=view.now_s, stale_after_s=view.stale_after_s, live=view.live
        )

    def _claim_offsets(self, group: str, scope: Scope) -> dict[ClaimKey, int | None]:
        """Return the partitions meant, with their offsets as the log has them: those of the group's topics
        that were never claimed too, and of a topic worked on in lanes all lanes.
        """
        claims = self._opened().claims(group)
        topics = claimed_ways({key.topic for key in claims})
        keys = [ClaimKey(group, *place) for place in self._offsets.places(group, scope, topics)]
        marks = self._offsets.marks({data_topic(key.topic) for key in keys})
        return {
            key: None
            if key not in claims or is_of_another(claims[key], marks.get(data_topic(key.topic)))
            else claims[key].current_offset
            for key in keys
        }

    # -- parts: the broker's groups

    def _owners(self, group: str) -> dict[Place, MemberDescription]:
        _, members = self._described(group)
        return {place: member for member in members for place in member.assignment}

    def _describe_consumers(self, group: str, places: Collection[Place] | None) -> tuple[GroupPosition, ...]:
        owners, committed = self._owners(group), self._broker.committed(group)
        told = sorted(each for each in {*committed, *owners} if places is None or each in places)
        ends = {place: end for place, (_, end) in self._offsets.bounds(told).items()}
        lines = []
        for place in told:
            end, owner, current = ends.get(place), owners.get(place), committed.get(place)
            lines.append(
                GroupPosition(
                    group=group,
                    topic=place[0],
                    partition=place[1],
                    current_offset=current,
                    log_end_offset=end,
                    lag=None if end is None or current is None else max(0, end - current),
                    consumer_id=None if owner is None else owner.consumer_id,
                    host=None if owner is None else owner.host,
                    client_id=None if owner is None else owner.client_id,
                )
            )
        return tuple(lines)

    def _consumer_offsets(self, group: str, scope: Scope) -> dict[ClaimKey, int | None]:
        self._described(group)
        committed = self._broker.committed(group)
        # As with Kafka's tool, a topic that is named may be one the group has not read yet.
        places = self._offsets.places(group, scope, set(scope.topics) or {topic for topic, _ in committed})
        if not scope.topics:
            places = [place for place in places if place in committed]
        return {ClaimKey(group, *place): committed.get(place) for place in places}


def _claim_groups(view: GroupView) -> list[GroupDescription]:
    pauses = view.pauses()
    by_group: dict[str, dict[ClaimKey, Claim]] = {group: {} for group in pauses}
    for key, claim in view.claims().items():
        by_group.setdefault(key.group_id, {})[key] = claim
    return [
        _claim_group(view, group, claims, pauses.get(group)) for group, claims in sorted(by_group.items())
    ]


def _claim_owners(view: GroupView) -> dict[tuple[GroupKind, str], Mapping[Place, str]]:
    owners: dict[tuple[GroupKind, str], dict[Place, str]] = {}
    for key, claim in view.claims().items():
        held = owners.setdefault((GroupKind.CLAIM, key.group_id), {})
        if view.live(claim):
            held[key.topic, key.partition] = f"{claim.client_id}-{claim.instance_id}"
    return dict(owners)


def _claim_group(
    view: GroupView, group: str, claims: Mapping[ClaimKey, Claim], pause: Pause | None
) -> GroupDescription:
    live = [claim for claim in claims.values() if view.live(claim)]
    resets = tuple(
        sorted({found for claim in claims.values() if (found := held_by_reset(claim)) is not None})
    )
    members = {(claim.client_id, claim.instance_id) for claim in live if held_by_reset(claim) is None}
    state = (
        ShownState.RESETTING
        if resets
        else ShownState.PAUSED
        if pause is not None
        else ShownState.STABLE
        if live
        else ShownState.EMPTY
    )
    return GroupDescription(
        group=group,
        kind=GroupKind.CLAIM,
        state=state.value,
        members=len(members),
        partitions_held=len(live),
        partitions=len(claims),
        paused_until_s=None if pause is None else pause.expires_at_s,
        resets=resets,
    )
