"""One schedule, run: processes start, things go wrong, everything is watched, and in the end all must be
well.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import NamedTuple

from holdfast.core.kafka.topic_partition import TopicPartition
from tests.simulation.audits import Auditor
from tests.simulation.balancing import BalancedNode, Talk
from tests.simulation.broker import Broker
from tests.simulation.checks import bounds
from tests.simulation.go_member import GoMember
from tests.simulation.node import Node
from tests.simulation.plan import Kind, Plan, draw
from tests.simulation.process import Process
from tests.simulation.resetting import Administrator, Settler, Step
from tests.simulation.timeline import Timeline
from tests.simulation.trace import WHOLE, Trace
from tests.simulation.units import data_place

GO_PREFIX = "go"
AUDIT_INTERVALS = 0.5
GROWTH_INTERVALS = 0.25
LONGEST_FAULT_INTERVALS = 3.0


class Outcome(NamedTuple):
    """Result of one schedule, in numbers: two runs of one seed have the same."""

    kind: Kind
    steps: int
    frames: int
    handed_out: int
    redelivered: int
    taken: int
    conflicts: int
    ended_s: float
    digest: str
    """Of all that processes did and all that members asked for, with the times."""


class World:
    """Everything there is in one schedule."""

    def __init__(self, plan: Plan, draws: Random) -> None:
        self.plan, self.draws, self.topic_draws = plan, draws, Random(-1 - plan.seed)
        self.timeline = Timeline()
        self.trace = Trace(self.timeline, plan.seed)
        settings = plan.settings("c", "i", Random(0))
        self.broker = Broker(
            self.timeline,
            draws,
            plan.weather,
            group="g",
            logs=plan.logs,
            stale_after_s=settings.stale_after_s,
        )
        places = [
            TopicPartition(topic, partition)
            for topic, count in plan.topics.items()
            for partition in range(count)
        ]
        limits = bounds(
            settings, delay_s=plan.weather.delay_high_s, partitions=len(places), skew_s=plan.skew_s
        )
        self.checks = Auditor(self.broker, self.trace, limits, plan.delivery, places)
        self.checks.whole_topic = plan.kind is Kind.WHOLE_TOPICS
        self.checks.balanced = plan.kind is Kind.BALANCED
        self.broker.with_go = plan.kind is Kind.GO
        self.broker.checks = self.checks
        self.topics = dict(plan.topics)
        self.nodes: list[Process] = []
        self.talk = Talk(self.broker)
        self.resets = 0
        self._born: Counter[str] = Counter()
        self.interval_s = plan.interval_s
        self.faults_end_s = (1.0 + plan.fault_intervals) * self.interval_s
        self.end_s = (
            self.faults_end_s
            + (2 * LONGEST_FAULT_INTERVALS + 1) * self.interval_s
            + limits.free_s
            + limits.settle_s
        )

    # -- processes

    def start(self, client: str, *, skew_s: float | None = None) -> None:
        """Start a process of *client*: a new instance."""
        draws = self.draws
        self._born[client] += 1
        settings = self.plan.settings(client, f"{client}.{self._born[client]}", draws)
        skew_s = draws.uniform(-self.plan.skew_s, self.plan.skew_s) if skew_s is None else skew_s
        if client.startswith(GO_PREFIX):
            node = GoMember(
                self.broker,
                self.checks,
                self.trace,
                client,
                settings.instance_id,
                draws,
                self.topics,
                skew_s=skew_s,
            )
            self.checks.go_clients.add(client)
            self.nodes.append(node)
            return
        rate = 1.0 + draws.uniform(-0.0025, 0.0025)
        common = (self.broker, self.checks, self.trace, settings, self.plan.habits, self.topics, draws)
        member = (
            BalancedNode(self.talk, *common, rate=rate, skew_s=skew_s)
            if self.plan.kind is Kind.BALANCED
            else Node(*common, rate=rate, skew_s=skew_s)
        )
        member.is_of_before = self.plan.has_old and self.topic_draws.random() < 0.5
        if self.plan.kind is Kind.RESETS:
            Settler(member, self.checks.decisions, self.interval_s)
        self.nodes.append(member)
        self.checks.nodes[member.name] = member

    def alive(self) -> list[Process]:
        return [node for node in self.nodes if node.alive]

    # -- the run

    def run(self) -> Outcome:
        """Run the schedule to its end; raises Violation."""
        for client in self.plan.clients():
            self.timeline.at(self.draws.random() * self.interval_s, self.start, client)
        self._grow()
        self._audit()
        for _ in range(self.plan.faults):
            self.timeline.at(self._during_s(), self._fault)
        self._prepare()
        self.timeline.run(self.end_s)
        checks = self.checks
        return Outcome(
            self.plan.kind,
            self.timeline.step,
            sum(len(log.records) for log in self.broker.logs),
            checks.handed_out,
            checks.redelivered,
            checks.taken,
            checks.conflicts,
            self.end_s,
            self.trace.digest,
        )

    def _prepare(self) -> None:
        """Plan the events of this kind of schedule."""
        plan, draws = self.plan, self.draws
        for index in range(plan.go_members):
            self.timeline.at(draws.random() * self.interval_s, self.start, f"{GO_PREFIX}{index}")
        if plan.kind is Kind.TWINS:
            for _ in range(draws.randint(1, 2)):
                self.timeline.at(self._during_s(), self.start, draws.choice(plan.clients()))
        for _ in range(plan.made_again):
            during_s = self.interval_s * (1.0 + self.topic_draws.random() * plan.fault_intervals)
            self.timeline.at(during_s, self._make_again)
        if plan.kind is Kind.RESETS:
            for _ in range(draws.randint(1, 2)):
                self.timeline.at(self._during_s(), self._reset)

    def _during_s(self) -> float:
        return self.interval_s * (1.0 + self.draws.random() * self.plan.fault_intervals)

    def _reset(self) -> None:
        draws = self.draws
        self.resets += 1
        Administrator(
            self.broker,
            self.checks,
            self.trace,
            self.checks.decisions,
            draws,
            reset_id=f"{self.resets}",
            interval_s=self.interval_s,
            deadline_s=draws.choice((2.0, 6.0)) * self.interval_s,
            moves=draws.random() < 0.75,
            dies_at=draws.choice((None, None, *Step)),
        )

    def _grow(self) -> None:
        done = set()
        for place in self.checks.ledgers:
            data = data_place(place)
            if data not in done:
                done.add(data)
                self.broker.grow(data, self.draws.randint(0, self.plan.growth))
        self.timeline.after(GROWTH_INTERVALS * self.interval_s, self._grow)

    def _audit(self) -> None:
        self.checks.audit()
        self.timeline.after(AUDIT_INTERVALS * self.interval_s, self._audit)

    # -- faults

    def _fault(self) -> None:
        draws = self.draws
        node = draws.choice(self.nodes) if self.nodes else None
        if node is None or not node.alive:
            return
        for_s = self.interval_s * (
            draws.uniform(0.1, 0.6) if draws.random() < 0.5 else draws.uniform(0.6, LONGEST_FAULT_INTERVALS)
        )
        match draws.randrange(13):
            case 0 | 1:
                node.kill()
                self._restart(node)
            case 2:
                node.terminate(draws.random() < 0.5)
                self._restart(node)
            case 3 | 4:
                node.pause(for_s)
            case 5:
                node.isolate(for_s)
            case 6:
                node.isolate(for_s, mute=False)
            case 7:
                node.isolate(for_s, deaf=False)
            case 8:
                index = draws.randrange(len(self.broker.logs))
                self.trace.note(WHOLE, "broker", f"log {index} is down for {for_s:.2f} s")
                self.broker.take_down(index, for_s)
            case 9:
                self._jump(node)
            case 10:
                index = draws.randrange(len(self.broker.logs))
                by_s = draws.uniform(0.0, 0.2) * self.interval_s
                self.trace.note(
                    WHOLE, "broker", f"log {index} is led by another, whose clock is {by_s:.2f} s behind"
                )
                self.broker.step_back(index, by_s)
            case 11 if isinstance(node, Node):
                node.fail_fetch()
            case _:
                self._more_partitions()

    def _restart(self, node: Process) -> None:
        draws = self.draws
        wait_s = draws.choice((0.01, 0.3, 1.0, LONGEST_FAULT_INTERVALS)) * draws.random() * self.interval_s
        if draws.random() < 0.9:
            self.timeline.after(wait_s, self.start, node.client)

    def _jump(self, node: Process) -> None:
        """The wall clock of a process jumps, and is put right later."""
        by_s = self.draws.choice((-1, 1)) * self.draws.choice(
            (1.0, 0.5 * self.interval_s, 5 * self.interval_s, 1e6)
        )
        self.trace.note(WHOLE, node.name, f"has its clock set by {by_s:.1f} s")
        wrong_s = 2 * self.interval_s
        node.fault(wrong_s + 0.1)
        node.skew_s += by_s
        self.timeline.after(wrong_s, self._jump_back, node, by_s)

    def _jump_back(self, node: Process, by_s: float) -> None:
        node.skew_s -= by_s

    def _make_again(self) -> None:
        """A topic is deleted and made again, and has more records than the old one's offsets at once, or
        fewer.
        """
        topic = self.topic_draws.choice(list(self.topics)).partition("~lane-")[0]
        self.trace.note(WHOLE, "broker", f"{topic} is made again")
        self.broker.make_again(topic)
        self.checks.on_made_again(topic)
        for data in sorted({data_place(place) for place in self.checks.ledgers}):
            if data.topic == topic:
                self.broker.grow(data, self.topic_draws.choice((0, 3, 60)))
        for node in self.alive():
            node.fault(self.interval_s)

    def _more_partitions(self) -> None:
        if self.plan.kind is Kind.LANES:
            return
        topic = self.draws.choice(list(self.topics))
        self.topics[topic] += 1
        self.trace.note(WHOLE, "broker", f"{topic} has {self.topics[topic]} partitions")
        self.checks.add(TopicPartition(topic, self.topics[topic] - 1))
        for node in self.alive():
            node.fault(0.5 * self.interval_s)
            self.timeline.after(
                self.draws.random() * 0.5 * self.interval_s, node.grow, topic, self.topics[topic]
            )


def run_schedule(seed: int) -> Outcome:
    """Run the schedule of *seed*; raises Violation."""
    plan, draws = draw(seed)
    return World(plan, draws).run()
