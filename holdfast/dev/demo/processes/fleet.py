"""A simulated fleet of claim holders: real frames on the coordination topic, and books to hold a table of
claims against.

`Fleet` is pure: for a time it returns what its clients write next, and keeps for every claim what a fold
must make of that. `LiveFleet` writes it to a broker, in step with the clock, from a thread of its own.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message

from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.claims.claim_keys import claim_key
from holdfast.core.claims.frames import (
    ClaimingPartition,
    Frame,
    Heartbeat,
    ReleasingPartition,
    coordination_partition,
    encode,
)
from holdfast.errors import BrokerError, ConfigError
from holdfast.kafka.clients import make_writer

logger = logging.getLogger(__name__)

GROUPS = (("billing", "invoices"), ("fraud", "payments"), ("mail", "messages"), ("search", "documents"))
"""Consumer groups, and the family of topics each consumes."""

PARTITIONS_PER_TOPIC = 10
TICK_S = 0.05
LIMIT_WAIT_S = 120.0
RESTART_EVERY_TICKS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """The number of clients and claims, and the interval of heartbeats.

    Real clients do so every 60 s. Here time is short, so that every claim can be seen to live; the rules that
    count seconds (stale after 120) are those of the log's time all the same, so no claim of the fleet goes
    stale while it runs.
    """

    clients: int = 200
    claims: int = 2_000
    heartbeat_s: float = 1.0
    seed: int = 20

    def __post_init__(self) -> None:
        if self.clients < 2 * len(GROUPS) or self.claims < self.clients:
            raise ConfigError(
                f"a fleet of {self.clients} clients and {self.claims} claims: have {2 * len(GROUPS)} clients"
                " and a claim for each"
            )
        if self.heartbeat_s < TICK_S:
            raise ConfigError(f"a heartbeat every {self.heartbeat_s:g} s: {TICK_S:g} s is the shortest step")

    @property
    def ticks(self) -> int:
        """Return in how many steps every claim has had one heartbeat."""
        return round(self.heartbeat_s / TICK_S)


@dataclass(slots=True, kw_only=True)
class Client:
    """One process of a consumer group. A restart gives it another instance id under the same name."""

    client_id: str
    instance_id: str


@dataclass(slots=True, kw_only=True)
class FleetClaim:
    """The fleet's own record of one claim: its owner and epoch, its offset, and the number of frames that
    must have been refused.
    """

    group_id: str
    topic: str
    partition: int
    owner: Client
    instance_id: str
    epoch: int = 1
    offset: int = 0
    refused: int = 0

    @property
    def key(self) -> str:
        return claim_key(self.group_id, self.topic, self.partition)


@dataclass(slots=True, kw_only=True)
class Counts:
    """The fleet's counts, in frames where no other unit is named."""

    claims: int = 0
    heartbeats: int = 0
    handovers: int = 0
    """A release and the claim of the next owner, at once."""
    restarts: int = 0
    """Clients that came back under a new instance id and took all their claims again."""
    contests: int = 0
    """Attempts at a claim that another client holds; they change nothing."""
    zombies: int = 0
    """Heartbeats of an instance that was replaced; they are refused and noted as anomalies."""


@dataclass(slots=True)
class Fleet:
    """The clients, what they write, and what becomes of it by the rules of the guarded view.

    >>> fleet = Fleet(FleetPlan(clients=8, claims=8))
    >>> [type(frame).__name__ for frame in fleet.arrive(100)].count("ClaimingPartition")
    16
    """

    plan: FleetPlan
    counts: Counts = field(default_factory=Counts)
    entries: list[FleetClaim] = field(init=False)
    _random: random.Random = field(init=False)
    _members: list[list[Client]] = field(init=False)
    _late: list[tuple[FleetClaim, str, str]] = field(init=False, default_factory=list)
    _tick: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._random = random.Random(self.plan.seed)
        self._members = [[] for _ in GROUPS]
        for number in range(self.plan.clients):
            turn, group = divmod(number, len(GROUPS))
            self._members[group].append(
                Client(client_id=f"{GROUPS[group][0]}-{turn:03d}", instance_id=self._instance())
            )
        self.entries = [self._entry(number) for number in range(self.plan.claims)]

    def _entry(self, number: int) -> FleetClaim:
        turn, group = divmod(number, len(GROUPS))
        owner = self._members[group][turn % len(self._members[group])]
        name, family = GROUPS[group]
        topic, partition = divmod(turn, PARTITIONS_PER_TOPIC)
        return FleetClaim(
            group_id=name,
            topic=f"{family}-{topic:02d}",
            partition=partition,
            owner=owner,
            instance_id=owner.instance_id,
        )

    def _instance(self) -> str:
        return f"{self._random.getrandbits(32):08x}"

    def arrive(self, time_s: int) -> Iterator[Frame]:
        """Yield how the fleet comes up: every claim is claimed by its owner, contested by a neighbour a
        moment later, and begun.
        """
        for number, entry in enumerate(self.entries):
            yield self._claiming(entry, entry.owner, time_s)
            yield self._claiming(entry, self._neighbour(number, entry), time_s)
            self.counts.claims += 1
            self.counts.contests += 1
            yield self._heartbeat(entry, time_s)

    def tick(self, time_s: int) -> Iterator[Frame]:
        """Yield what the fleet writes in the next step of TICK_S: its share of heartbeats, and now and
        then an incident.
        """
        at, self._tick = self._tick, self._tick + 1
        late, self._late = self._late, []
        for entry, client_id, instance_id in late:
            # The replaced process did not know and speaks once more. Its claim is live, so this is refused
            # and noted.
            entry.refused += 1
            self.counts.zombies += 1
            yield Heartbeat(time_s, instance_id, client_id, entry.group_id, entry.topic, entry.partition, 0)
        for number in range(at % self.plan.ticks, len(self.entries), self.plan.ticks):
            yield self._heartbeat(self.entries[number], time_s)
        number = self._random.randrange(len(self.entries))
        yield from self._hand_over(
            self.entries[number], self._neighbour(number, self.entries[number]), time_s
        )
        number = self._random.randrange(len(self.entries))
        self.counts.contests += 1
        yield self._claiming(self.entries[number], self._neighbour(number, self.entries[number]), time_s)
        if at % RESTART_EVERY_TICKS == RESTART_EVERY_TICKS - 1:
            yield from self._restart(self._random.choice(self._random.choice(self._members)), time_s)

    # -- across processes

    def saved(self) -> bytes:
        """Return the fleet as it is, as JSON: reading it back makes data and runs nothing."""
        clients = [client for members in self._members for client in members]
        numbers = {id(client): number for number, client in enumerate(clients)}
        places = {id(entry): number for number, entry in enumerate(self.entries)}
        owners = [numbers[id(entry.owner)] for entry in self.entries]
        state = _Saved(
            plan=self.plan,
            counts=self.counts,
            instances=[client.instance_id for client in clients],
            claims=[
                (owner, entry.instance_id, entry.epoch, entry.offset, entry.refused)
                for owner, entry in zip(owners, self.entries, strict=True)
            ],
            late=[
                (places[id(entry)], client_id, instance_id) for entry, client_id, instance_id in self._late
            ],
            tick=self._tick,
            random=list(self._random.getstate()[1]),
        )
        return msgspec.json.encode(state)

    @classmethod
    def restored(cls, saved: bytes) -> Fleet:
        """Return the fleet that `saved` wrote; raises ConfigError for anything else."""
        try:
            state = _decode(saved)
            fleet = cls(state.plan, state.counts)
            clients = [client for members in fleet._members for client in members]
            for client, instance_id in zip(clients, state.instances, strict=True):
                client.instance_id = instance_id
            for entry, (owner, instance_id, epoch, offset, refused) in zip(
                fleet.entries, state.claims, strict=True
            ):
                entry.owner, entry.instance_id = clients[owner], instance_id
                entry.epoch, entry.offset, entry.refused = epoch, offset, refused
            fleet._late = [
                (fleet.entries[place], client_id, instance_id) for place, client_id, instance_id in state.late
            ]
            fleet._tick = state.tick
            fleet._random.setstate((_RANDOM_FORMAT, tuple(state.random), None))
        except (msgspec.DecodeError, ValueError, IndexError, TypeError) as error:
            raise ConfigError(f"this is no saved fleet: {error}") from error
        return fleet

    # -- incidents

    def _neighbour(self, number: int, entry: FleetClaim) -> Client:
        """Return another client of the claim's group."""
        members = self._members[number % len(GROUPS)]
        other = members[self._random.randrange(len(members))]
        return other if other is not entry.owner else members[(members.index(other) + 1) % len(members)]

    def _hand_over(self, entry: FleetClaim, heir: Client, time_s: int) -> Iterator[Frame]:
        entry.offset += self._random.randrange(1, 50)
        owner, key = entry.owner, (entry.group_id, entry.topic, entry.partition)
        yield ReleasingPartition(time_s, owner.instance_id, owner.client_id, *key, entry.offset)
        entry.owner, entry.instance_id, entry.epoch = heir, heir.instance_id, entry.epoch + 1
        self.counts.handovers += 1
        yield self._claiming(entry, heir, time_s)

    def _restart(self, client: Client, time_s: int) -> Iterator[Frame]:
        """A client returns under a new instance id: one heartbeat each takes its claims back, and shuts
        the old process out.
        """
        before, client.instance_id = client.instance_id, self._instance()
        mine = [entry for entry in self.entries if entry.owner is client]
        for entry in mine:
            entry.instance_id, entry.epoch = client.instance_id, entry.epoch + 1
            yield self._heartbeat(entry, time_s)
        self.counts.restarts += 1
        self._late.extend((entry, client.client_id, before) for entry in mine[:1])

    # -- frames

    @staticmethod
    def _claiming(entry: FleetClaim, client: Client, time_s: int) -> Frame:
        return ClaimingPartition(
            time_s, client.instance_id, client.client_id, entry.group_id, entry.topic, entry.partition
        )

    def _heartbeat(self, entry: FleetClaim, time_s: int) -> Frame:
        entry.offset += self._random.randrange(1, 500)
        self.counts.heartbeats += 1
        owner = entry.owner
        return Heartbeat(
            time_s,
            owner.instance_id,
            owner.client_id,
            entry.group_id,
            entry.topic,
            entry.partition,
            entry.offset,
        )


_RANDOM_FORMAT = random.Random().getstate()[0]


class _Saved(msgspec.Struct, frozen=True, kw_only=True):
    plan: FleetPlan
    counts: Counts
    instances: list[str]
    claims: list[tuple[int, str, int, int, int]]
    """Of each claim the owner's number, instance, epoch, offset, refused frames."""
    late: list[tuple[int, str, str]]
    tick: int
    random: list[int]


_decode = msgspec.json.Decoder(_Saved).decode


class LiveFleet:
    """Writes a fleet's frames to the coordination topic for as long as the block lasts, each to the partition
    its topic hashes to.

    One idempotent producer stands for all clients, so that the log has the order of the books. `stop` returns
    when every frame is in the log, and raises what went wrong on the way. A fleet that is there already does
    not arrive again.
    """

    def __init__(
        self,
        settings: Settings,
        fleet: Fleet,
        *,
        partitions: int,
        arrives: bool = True,
        clock: Clock = system_clock,
    ) -> None:
        self.fleet, self._topic, self._partitions, self._clock = (
            fleet,
            settings.coordination_topic,
            partitions,
            clock,
        )
        self._arrives = arrives
        self._producer = make_writer(
            settings.producer(**{"enable.idempotence": True, "linger.ms": 2, "message.timeout.ms": 30_000}),
            logger=logger,
        )
        self._places: dict[str, int] = {}
        self._wanted, self._arrived = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet", daemon=True)
        self._failure: BaseException | None = None
        self.written = 0
        """Frames that are in the log."""
        self.ends: dict[int, int] = {}
        """Offset of the last frame in the log, by partition."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._wanted.set()
        self._thread.join(LIMIT_WAIT_S)

    def arrived(self) -> None:
        """Wait until every client holds its claims."""
        if not self._arrived.wait(LIMIT_WAIT_S):
            self.check()
            raise BrokerError(
                f"the fleet's first frames were not in {self._topic} within {LIMIT_WAIT_S:g} s: is the broker"
                " overloaded?"
            )
        self.check()

    def check(self) -> None:
        """Raise BrokerError if the fleet had to give up."""
        if self._failure is not None:
            raise BrokerError(f"the fleet cannot write to {self._topic}: {self._failure}") from self._failure

    def stop(self) -> None:
        """End the fleet's writing; the books and `ends` are final afterwards."""
        self._wanted.set()
        self._thread.join(LIMIT_WAIT_S)
        self.check()
        if self._thread.is_alive():
            raise BrokerError(
                f"the fleet's last frames were not in {self._topic} within {LIMIT_WAIT_S:g} s: is the broker"
                " overloaded?"
            )

    # -- in the thread

    def _run(self) -> None:
        try:
            for frame in self.fleet.arrive(self._clock.now_ms() // 1000) if self._arrives else ():
                self._write(frame)
            self._flush()
            self._arrived.set()
            due_s = self._clock.monotonic_s()
            while not self._wanted.is_set() and self._failure is None:
                for frame in self.fleet.tick(self._clock.now_ms() // 1000):
                    self._write(frame)
                due_s = max(
                    due_s + TICK_S, self._clock.monotonic_s() - 1.0
                )  # after a stall it does not make up for more than 1 s
                self._producer.poll(0)
                while (left_s := due_s - self._clock.monotonic_s()) > 0 and not self._wanted.is_set():
                    self._producer.poll(left_s)
            self._flush()
        except Exception as error:  # noqa: BLE001  raised by check() in the owner's thread
            self._failure = self._failure or error
        finally:
            self._arrived.set()

    def _write(self, frame: Any) -> None:
        place = self._places.get(frame.topic)
        if place is None:
            place = self._places[frame.topic] = coordination_partition(frame.topic, self._partitions)
        while True:
            try:
                self._producer.produce(
                    self._topic, encode(frame), partition=place, on_delivery=self._delivered
                )
                return
            except BufferError:
                self._producer.poll(0.05)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failure = self._failure or KafkaException(error)
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        self.written += 1
        self.ends[partition] = max(offset, self.ends.get(partition, offset))

    def _flush(self) -> None:
        left = self._producer.flush(LIMIT_WAIT_S)
        if left and self._failure is None:
            self._failure = BrokerError(f"{left} frames were not acknowledged within {LIMIT_WAIT_S:g} s")
