"""The parts of one schedule, drawn from its seed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random

from holdfast.core.member.settings import Delivery, MemberSettings
from tests.simulation.broker import Weather
from tests.simulation.job import Habits
from tests.simulation.units import lane_topics


class Kind(StrEnum):
    """Main subject of a schedule. Faults of every kind happen in all of them."""

    RACE = "race"
    AT_MOST_ONCE = "at-most-once"
    TWINS = "twins"
    RESETS = "resets"
    WHOLE_TOPICS = "whole-topics"
    LANES = "lanes"
    BALANCED = "balanced"
    GO = "go"
    CROWD = "crowd"


WEIGHTS = {
    Kind.RACE: 34,
    Kind.AT_MOST_ONCE: 16,
    Kind.TWINS: 10,
    Kind.RESETS: 14,
    Kind.WHOLE_TOPICS: 6,
    Kind.LANES: 6,
    Kind.BALANCED: 8,
    Kind.GO: 6,
}
CROWD_EVERY = 500
INTERVALS_S = (1.0, 2.0, 3.0, 3.0, 3.0, 10.0, 60.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A schedule: the fleet, the network, and how much goes wrong for how long."""

    seed: int
    kind: Kind
    interval_s: float
    topics: dict[str, int]
    logs: int
    members: int
    go_members: int
    delivery: Delivery
    faults: int
    fault_intervals: float
    skew_s: float
    habits: Habits
    weather: Weather
    growth: int
    has_old: bool = False
    """True if members of an earlier release take part, which know no marks of topics."""
    made_again: int = 0
    """Number of times that a topic is deleted and made again. Zero with members that know no marks: these
    continue at the old offset.
    """

    def settings(self, client: str, instance: str, draws: Random) -> MemberSettings:
        """Return those of one process."""
        balanced = self.kind is Kind.BALANCED
        whole = self.kind is Kind.WHOLE_TOPICS
        limited = self.kind in (Kind.RACE, Kind.AT_MOST_ONCE) and draws.random() < 0.15
        return MemberSettings(
            group_id="g",
            client_id=client,
            instance_id=instance,
            topics=tuple(self.topics),
            heartbeat_interval_s=self.interval_s,
            whole_topic=whole,
            greedy=draws.random() < 0.3,
            fast_reclaim=draws.random() < 0.85,
            maximum_claims=draws.randint(1, 3) if limited else 0,
            release_if_behind=draws.random() < 0.6,
            delivery=self.delivery,
            drain_s=draws.choice((None, None, 0.0)),
            maximum_outstanding=draws.choice((100_000, 30, 3)),
            interop=self.kind is Kind.GO,
            balanced=balanced,
            handler_timeout_s=draws.choice((300.0, 8 * self.interval_s)),
        )

    def clients(self) -> list[str]:
        return [f"c{index}" for index in range(self.members)]


def draw(seed: int) -> tuple[Plan, Random]:
    """Return the schedule of *seed* and where its further chances come from."""
    draws = Random(seed)
    kind = draws.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    if seed % CROWD_EVERY == CROWD_EVERY - 1:
        kind = Kind.CROWD
    interval_s = 60.0 if kind is Kind.GO else draws.choice(INTERVALS_S)
    delay_high_s = draws.choice((0.002, 0.01, 0.03)) * interval_s ** draws.choice((0.0, 0.5, 1.0))
    delay_high_s = min(delay_high_s, 0.03 * interval_s)
    rough = draws.random() < 0.4
    weather = Weather(
        delay_low_s=0.2 * delay_high_s,
        delay_high_s=delay_high_s,
        send_timeout_s=interval_s,
        repeat_within_s=draws.choice((0.1, 0.5, 1.5)) * interval_s,
        drop=0.02 if rough and draws.random() < 0.5 else 0.0,
        unknown=0.02 if rough and draws.random() < 0.5 else 0.0,
        repeat=0.05 if rough and draws.random() < 0.5 else 0.0,
        clock_rate=1.0 + draws.uniform(-0.0025, 0.0025),
    )
    habits = Habits(
        pace_s=draws.choice((0.1, 0.2, 0.3)) * interval_s,
        batch=draws.choice((1, 4, 12)),
        disorder=draws.choice((0.0, 0.3)),
        slowness=draws.choice((0.0, 0.3, 0.7, 0.0, 0.3, 0.7, 0.97)),
        flushes=draws.choice((0.0, 0.0, 0.1)),
    )
    members, topics, logs = _fleet(kind, draws)
    topic_draws = Random(-1 - seed)
    has_old = topic_draws.random() < 0.15
    plan = Plan(
        seed=seed,
        kind=kind,
        interval_s=interval_s,
        topics=topics,
        logs=logs,
        members=members,
        go_members=draws.randint(1, 2) if kind is Kind.GO else 0,
        delivery=Delivery.AT_MOST_ONCE if kind is Kind.AT_MOST_ONCE else _delivery(kind, draws),
        faults=draws.choice((0, 1, 2, 4, 8)),
        fault_intervals=draws.choice((4.0, 8.0, 14.0)),
        skew_s=draws.choice((0.0, 0.5, 2.0)),
        habits=habits,
        weather=weather,
        growth=draws.choice((1, 3, 8)),
        has_old=has_old,
        made_again=0 if has_old or kind is Kind.GO else topic_draws.choice((0, 0, 0, 1, 2)),
    )
    return plan, draws


def _delivery(kind: Kind, draws: Random) -> Delivery:
    other = kind in (Kind.TWINS, Kind.RESETS, Kind.WHOLE_TOPICS, Kind.BALANCED) and draws.random() < 0.25
    return Delivery.AT_MOST_ONCE if other else Delivery.AT_LEAST_ONCE


def _fleet(kind: Kind, draws: Random) -> tuple[int, dict[str, int], int]:
    """Return how many members, which topics with how many partitions, and how many coordination partitions
    there are.
    """
    match kind:
        case Kind.CROWD:
            return draws.randint(100, 250), {f"t{index}": 8 for index in range(draws.randint(1, 3))}, 2
        case Kind.LANES:
            return (
                draws.randint(2, 4),
                {topic: draws.randint(1, 2) for topic in lane_topics("orders", draws.choice((2, 3)))},
                3,
            )
        case Kind.WHOLE_TOPICS:
            return (
                draws.randint(2, 3),
                {f"t{index}": draws.randint(1, 3) for index in range(draws.randint(1, 3))},
                draws.choice((1, 2)),
            )
        case Kind.GO:
            return draws.randint(1, 2), {"t0": draws.randint(1, 3)}, 1
        case Kind.BALANCED:
            return (
                draws.randint(2, 4),
                {f"t{index}": draws.randint(2, 4) for index in range(draws.randint(1, 2))},
                1,
            )
        case _:
            topics = {f"t{index}": draws.randint(1, 3) for index in range(draws.choice((1, 1, 2)))}
            return draws.randint(1, 4), topics, draws.choice((1, 1, 2))
