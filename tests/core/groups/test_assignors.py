"""The assignors against Kafka's own results, and what every assignment must be whatever the group."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.groups.assignors import sticky
from holdfast.core.groups.assignors.assign import assign, assignor_named, spread
from holdfast.core.groups.assignors.types import Assignment, AssignorName, Subscriber
from holdfast.core.groups.java_order import HashOrder, coordinator_partition, hash_order, string_hash
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.errors import ConfigError
from tests.support.places import TESTDATA
from tests.support.scale import scaled

Case = dict[str, Any]
Parts = dict[str, set[str]]


def cases(name: str, list_of: str = "cases") -> list[Case]:
    found: list[Case] = json.loads((TESTDATA / name).read_text())[list_of]
    return found


def java_orders() -> list[list[str]]:
    found: list[list[str]] = json.loads((TESTDATA / "java_order.json").read_text())["orders"]
    return found


def split(text: str) -> TopicPartition:
    topic, _, partition = text.rpartition("-")
    return TopicPartition(topic, int(partition))


def subscribers(case: Case) -> list[Subscriber]:
    return [
        Subscriber(
            member_id=member["id"],
            topics=tuple(member["topics"]),
            instance_id=member.get("instance_id"),
            owned=tuple(map(split, member.get("owned", ()))),
            generation=member.get("generation", -1),
        )
        for member in case["members"]
    ]


def as_sets(assignment: Assignment) -> Parts:
    return {
        member_id: {f"{topic}-{partition}" for topic, partition in part}
        for member_id, part in assignment.items()
    }


def expected(result: Mapping[str, Sequence[str]]) -> Parts:
    return {member_id: set(part) for member_id, part in result.items()}


@pytest.mark.parametrize("case", cases("assignors_fresh.json"), ids=lambda case: case["id"])
@pytest.mark.parametrize("name", ["range", "roundrobin", "sticky"])
def test_a_group_without_a_past_is_assigned_as_kafka_does(name: str, case: Case) -> None:
    """G1, first table: every letter, every assignor; cooperative-sticky's first round is sticky's."""
    assert as_sets(assign(AssignorName(name), case["topics"], subscribers(case))) == expected(case[name])
    if name == "sticky":
        assert as_sets(
            assign(AssignorName.COOPERATIVE_STICKY, case["topics"], subscribers(case))
        ) == expected(case[name])


@pytest.mark.parametrize(
    "case", cases("assignors_fresh.json", "roundrobin_static"), ids=lambda case: str(case["topics"])
)
def test_static_members_come_first_by_their_instance_ids(case: Case) -> None:
    """G1, Kafka's own tests of static members."""
    (result,) = (case[key] for key in case if key not in ("topics", "members", "source", "note"))
    assert as_sets(assign(AssignorName.ROUND_ROBIN, case["topics"], subscribers(case))) == expected(result)


@pytest.mark.parametrize("case", cases("assignors_owned.json"), ids=lambda case: case["id"])
def test_what_members_own_stays_as_kafka_lets_it_stay(case: Case) -> None:
    """G1, second table, sticky."""
    assert as_sets(assign(AssignorName.STICKY, case["topics"], subscribers(case))) == expected(case["sticky"])


@pytest.mark.parametrize("case", cases("assignors_owned.json"), ids=lambda case: case["id"])
def test_cooperative_rounds_are_kafka_s(case: Case) -> None:
    """G1, second table: in each round the members give up what they did not get back, and report what they
    then own.
    """
    members = subscribers(case)
    generation = max(member.generation for member in members)
    for number, result in enumerate(case["cooperative"]):
        parts = assign(AssignorName.COOPERATIVE_STICKY, case["topics"], members)
        assert as_sets(parts) == expected(result), f"round {number + 1}"
        members = [
            Subscriber(
                member_id=member.member_id,
                topics=member.topics,
                owned=tuple(parts[member.member_id]),
                generation=generation + 1,
            )
            for member in members
        ]
    assert as_sets(assign(AssignorName.COOPERATIVE_STICKY, case["topics"], members)) == expected(
        case["cooperative"][-1]
    ), "not settled"


@pytest.mark.parametrize("name", AssignorName)
def test_drawn_groups_are_assigned_as_kafka_s_classes_assigned_them(name: AssignorName) -> None:
    """G1 beyond the tables: unequal subscriptions, conflicting generations, up to thirty members."""
    for case in cases("assignors_recorded.json"):
        members = [
            Subscriber(
                member_id=member_id,
                instance_id=static,
                generation=generation,
                topics=tuple(topics),
                owned=tuple(map(split, owned)),
            )
            for member_id, static, generation, topics, owned in case["members"]
        ]
        parts = {
            member_id: part
            for member_id, part in as_sets(assign(name, case["topics"], members)).items()
            if part
        }
        assert parts == expected(case[name]), case["id"]


def test_members_in_the_order_of_their_names_would_get_another_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted fault: the order of Java's hash maps replaced by the order of names breaks the tables."""
    monkeypatch.setattr(sticky, "hash_order", sorted)
    wrong = [
        case["id"]
        for case in cases("assignors_recorded.json")
        if expected(case["sticky"])
        != {
            member_id: part
            for member_id, part in as_sets(
                assign(
                    AssignorName.STICKY,
                    case["topics"],
                    [
                        Subscriber(
                            member_id=each[0],
                            generation=each[2],
                            topics=tuple(each[3]),
                            owned=tuple(map(split, each[4])),
                        )
                        for each in case["members"]
                    ],
                )
            ).items()
            if part
        }
    ]
    assert wrong


# -- whatever the group


A_GENERATION = st.sampled_from([-1, 3, 4, 4, 4])


@st.composite
def groups(draw: st.DrawFn, *, equal: bool) -> tuple[dict[str, int], list[Subscriber]]:
    counts = {f"t{number}": draw(st.integers(1, 9)) for number in range(draw(st.integers(1, 4)))}
    everything = [
        TopicPartition(topic, partition) for topic, count in counts.items() for partition in range(count)
    ]
    members, kept = [], st.lists(st.sampled_from(everything), max_size=12)
    subscribed = st.sets(st.sampled_from(sorted(counts)), min_size=1)
    for number in range(draw(st.integers(1, 9))):
        topics = tuple(counts) if equal else tuple(draw(subscribed))
        owned = tuple(draw(kept))
        generation = draw(A_GENERATION)
        static = draw(st.sampled_from([None, None, f"i{number}"]))
        members.append(
            Subscriber(
                member_id=f"m-{number}", topics=topics, owned=owned, generation=generation, instance_id=static
            )
        )
    return counts, members


def problems(
    counts: Mapping[str, int], members: Sequence[Subscriber], parts: Assignment, *, balanced: bool
) -> list[str]:
    """Return the faults of *parts*: each partition with a subscriber belongs to exactly one, who
    subscribes; spread at most 1.
    """
    found = []
    topics = {member.member_id: member.topics for member in members}
    given_to = Counter(each for part in parts.values() for each in part)
    wanted = {
        TopicPartition(topic, partition)
        for topics in topics.values()
        for topic in topics
        for partition in range(counts[topic])
    }
    found += [f"{each} given {count} times" for each, count in given_to.items() if count > 1]
    found += [f"{each} left out" for each in wanted if each not in given_to]
    found += [
        f"{each} to {member_id}, not subscribed"
        for member_id, part in parts.items()
        for each in part
        if each.topic not in topics[member_id]
    ]
    if set(parts) != set(topics):
        found.append("members without an entry, or strangers with one")
    if balanced and spread(parts) > 1:
        found.append(f"spread {spread(parts)}")
    return found


@given(groups(equal=True), st.sampled_from([AssignorName.ROUND_ROBIN, AssignorName.STICKY]))
@settings(max_examples=scaled(150))
def test_with_equal_subscriptions_each_partition_has_one_member_and_loads_differ_by_one(
    group: tuple[dict[str, int], list[Subscriber]], name: AssignorName
) -> None:
    assert not problems(*group, assign(name, *group), balanced=True)


@pytest.mark.long
@given(
    groups(equal=False), st.sampled_from([AssignorName.RANGE, AssignorName.ROUND_ROBIN, AssignorName.STICKY])
)
@settings(max_examples=scaled(150))
def test_with_any_subscriptions_each_partition_has_one_member_that_wants_it(
    group: tuple[dict[str, int], list[Subscriber]], name: AssignorName
) -> None:
    assert not problems(*group, assign(name, *group), balanced=False)


@given(groups(equal=False) | groups(equal=True))
@settings(max_examples=scaled(100))
def test_a_result_owned_by_everybody_does_not_change_again(
    group: tuple[dict[str, int], list[Subscriber]],
) -> None:
    """Stickiness: nothing moves when nothing changed, and a member that leaves moves nothing but its own
    part.
    """
    counts, members = group
    parts = assign(AssignorName.STICKY, counts, members)
    settled = [
        Subscriber(
            member_id=each.member_id, topics=each.topics, owned=tuple(parts[each.member_id]), generation=9
        )
        for each in members
    ]
    assert as_sets(assign(AssignorName.STICKY, counts, settled)) == as_sets(parts)
    if len(members) > 1 and len({frozenset(member.topics) for member in members}) == 1:
        after = assign(AssignorName.STICKY, counts, settled[1:])
        assert all(set(parts[each.member_id]) <= set(after[each.member_id]) for each in settled[1:])


@given(groups(equal=False) | groups(equal=True))
@settings(max_examples=scaled(100))
def test_cooperative_members_never_hold_what_another_still_owns(
    group: tuple[dict[str, int], list[Subscriber]],
) -> None:
    """G2: in every round, each partition that a member gets was given up by all others in an earlier round;
    three rounds settle it.
    """
    counts, members = group
    held: dict[TopicPartition, str] = {}
    first = []
    for member in members:  # a group in order: one owner each
        mine = tuple(
            each for each in dict.fromkeys(member.owned) if each not in held and each.topic in member.topics
        )
        held.update(dict.fromkeys(mine, member.member_id))
        first.append(Subscriber(member_id=member.member_id, topics=member.topics, owned=mine, generation=4))
    now, previous = first, None
    for _ in range(4):
        parts = assign(AssignorName.COOPERATIVE_STICKY, counts, now)
        for member in now:
            others = {each for other in now if other is not member for each in other.owned}
            assert not others.intersection(parts[member.member_id])
        if parts == previous:
            break
        previous = parts
        now = [
            Subscriber(
                member_id=each.member_id,
                topics=each.topics,
                owned=tuple(sorted(parts[each.member_id])),
                generation=5,
            )
            for each in now
        ]
    assert not problems(counts, now, assign(AssignorName.COOPERATIVE_STICKY, counts, now), balanced=False)


def _drops_one(parts: Assignment) -> None:
    next(part for part in parts.values() if part).pop()


def _doubles_one(parts: Assignment) -> None:
    parts["m-1"].append(parts["m-0"][0])


def _hoards(parts: Assignment) -> None:
    parts["m-0"].extend(parts["m-1"])
    parts["m-1"].clear()


def _gives_to_a_stranger(parts: Assignment) -> None:
    parts["stranger"] = [parts["m-0"].pop()]


@pytest.mark.parametrize(
    ("fault", "seen"), [(_drops_one, "left out"), (_doubles_one, "2 times"), (_hoards, "spread 4")]
)
def test_the_check_of_assignments_finds_planted_faults(
    fault: Callable[[Assignment], None], seen: str
) -> None:
    members = [Subscriber(member_id=f"m-{number}", topics=("t",)) for number in range(2)]
    parts = assign(AssignorName.RANGE, {"t": 4}, members)
    assert not problems({"t": 4}, members, parts, balanced=True)
    fault(parts)
    assert any(seen in problem for problem in problems({"t": 4}, members, parts, balanced=True))


def test_a_thousand_partitions_are_assigned_to_fifty_unequal_members_within_a_fold_s_patience() -> None:
    """Size, not speed: the general method must not scan everything for each move.

    Its bound is far above what it takes.
    """
    counts = {f"t{number}": 100 for number in range(10)}
    members = [
        Subscriber(member_id=f"m-{number}", topics=tuple(sorted(counts)[: 1 + number % 10]))
        for number in range(50)
    ]
    parts = assign(AssignorName.STICKY, counts, members)
    assert not problems(counts, members, parts, balanced=False)


def test_two_members_under_one_id_are_refused() -> None:
    with pytest.raises(ConfigError, match="two members under one member id"):
        assign(AssignorName.RANGE, {"t": 1}, [Subscriber(member_id="m", topics=("t",))] * 2)


def test_an_unknown_assignor_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="range, roundrobin, sticky, cooperative-sticky"):
        assignor_named("uniform")


# -- Java's order


@pytest.mark.parametrize(
    "vector", cases("coordinator_partition.json", "vectors"), ids=lambda vector: repr(vector["group"])
)
def test_a_group_lives_where_kafka_s_coordinator_would(vector: Case) -> None:
    assert string_hash(vector["group"]) == vector["java_hash"]
    assert coordinator_partition(vector["group"]) == vector["partition_of_50"]


def test_the_smallest_hash_lives_in_partition_0_and_other_characters_count_as_two_units() -> None:
    assert string_hash("polygenelubricants") == -(1 << 31)
    assert coordinator_partition("polygenelubricants") == 0
    assert string_hash("\U0001f600") == 31 * 0xD83D + 0xDE00


def test_hash_maps_are_walked_as_java_walks_them() -> None:
    """Orders seen on a JVM, one of them with colliding names, of which the ninth in a chain makes a small
    table grow.
    """
    assert hash_order(f"consumer{number}" for number in range(1, 6)) == [
        f"consumer{number}" for number in (5, 4, 3, 2, 1)
    ]
    assert hash_order(["c0", "c1", "c2"]) == ["c0", "c1", "c2"]
    assert hash_order(f"m-{number}" for number in range(13)) == java_orders()[0]
    collided = [
        a + b + c + d for a in ("Aa", "BB") for b in ("Aa", "BB") for c in ("Aa", "BB") for d in ("Aa", "BB")
    ][:9]
    assert hash_order([*collided, "x", "y"]) == java_orders()[1]


def test_removed_members_leave_the_table_as_large_as_it_was() -> None:
    order: HashOrder[str] = HashOrder((str(number), number) for number in range(13))
    order.add("17", 17)
    for number in range(13):
        order.remove(str(number), number)
    order.add("2", 2)
    assert list(order) == ["2", "17"]  # 17 is at 17 of 32; in a table of 16 it would come first, at 1
    with pytest.raises(KeyError):
        order.remove("3", 3)
