"""Election on a real broker: a thread that joins the group, sends heartbeats for the roles assigned to it,
and calls a handler with each change of leader.

A leader asks `Election.leadership` before each action: the answer is true at the moment
it is given, also when the thread below has not run for a while. It is not absolute: a process can be frozen
right after it asked. What must never happen twice is fenced at the resource, by a transactional id or an
epoch in the database.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol, Self

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.outbox.election import (
    LIMIT_DRAIN,
    Acquired,
    ElectionSettings,
    Fenced,
    FenceReason,
    LeaderRecord,
    Leadership,
    LeadershipEvent,
    Phase,
    Revoked,
    RoleElection,
)
from holdfast.errors import BrokerError, HoldfastError, TopicError
from holdfast.kafka.clients import make_member, make_writer
from holdfast.kafka.codes import UNAUTHORIZED
from holdfast.kafka.group_members import may_join, others_in
from holdfast.kafka.reading.skipper import Skipper
from holdfast.outbox.troubles import RIGHTS, Trouble

logger = logging.getLogger(__name__)

POLL_S = 0.5
LOOK_S = 5.0
CLOSE_S = 10.0
METADATA_S = 10.0


class LeadershipHandler(Protocol):
    """The methods that an election calls. All calls come from the election's thread."""

    def acquired(self, leadership: Leadership) -> None:
        """Lead from now on. The method must not block."""

    def revoked(self, leaderships: Sequence[Leadership], deadline_s: float) -> None:
        """Finish the work begun under these and return, by *deadline_s* (monotonic) at the latest: the
        successor waits for it.
        """

    def fenced(self, leadership: Leadership, reason: FenceReason) -> None:
        """Stop at once: there may be a successor already. The method must not block."""

    def failed(self, error: HoldfastError) -> None:
        """The election has ended with *error*, and this process leads nothing any more."""


class Election:
    """One process's part in the election of all roles. Use it as a context manager, or call `start` and
    `stop`.

    With *kafka*, of which the settings' consumer and producer are made, it passes what cannot be read of the
    leader topic.
    """

    def __init__(
        self,
        settings: ElectionSettings,
        handler: LeadershipHandler,
        *,
        kafka: Settings | None = None,
        clock: Clock = system_clock,
        make_consumer: Callable[[dict[str, Any]], Any] = make_member,
        make_producer: Callable[[dict[str, Any]], Any] = make_writer,
    ) -> None:
        self.settings, self._handler, self._clock = settings, handler, clock
        self.skipper = (
            None if kafka is None else Skipper(kafka, self._consumer_config(), in_group=True, clock=clock)
        )
        self._make_consumer, self._make_producer = make_consumer, make_producer
        self.nonce = secrets.token_hex(8)
        self.roles = [
            RoleElection(
                role,
                name=settings.name,
                nonce=self.nonce,
                heartbeat_timeout_s=settings.heartbeat_timeout_s,
                heartbeat_interval_s=settings.heartbeat_interval_s,
            )
            for role in range(settings.roles)
        ]
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._consumer: Any = None
        self._producer: Any = None
        self._trouble = Trouble(f"election {settings.group_id}", clock)
        self._looked_s = 0.0
        self._is_refused = False
        """True if it lacks a right: an answer of a broker does not end such a trouble."""
        self._others = ""
        """The members that keep it from its group."""
        self.error: HoldfastError | None = None

    # -- life

    def start(self) -> None:
        """Join the group; raises TopicError when the leader topic does not fit, BrokerError when it cannot
        be asked.
        """
        assert self._thread is None, "an election is started once"
        self._choose_group()
        consumer = self._make_consumer(self._consumer_config())
        try:
            self._check_topic(consumer)
            self._producer = self._make_producer(self._producer_config())
            consumer.subscribe(
                [self.settings.leader_topic],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
        except BaseException:
            consumer.close()
            raise
        self._consumer = consumer
        self._thread = threading.Thread(target=self._run, name="holdfast-election", daemon=True)
        self._thread.start()

    def _choose_group(self) -> None:
        """Take the group of earlier releases where this principal was granted that one only."""
        settings = self.settings
        if not settings.elder_group or may_join(settings.producer, settings.group_id):
            return
        logger.warning(
            "election: this principal may not use group %(group)s, so %(elder)s is joined, as by earlier "
            "releases: a worker of an application of that name cannot be in it too. %(rights)s",
            {"group": settings.group_id, "elder": settings.elder_group, "rights": RIGHTS},
        )
        self.settings = replace(settings, group_id=settings.elder_group, elder_group="")
        self._trouble.who = f"election {self.settings.group_id}"

    def stop(self, deadline_s: float) -> None:
        """Give every role back, its leader drained, and leave the group; returns by *deadline_s*
        (monotonic) whatever hangs.
        """
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, deadline_s - self._clock.monotonic_s()))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(self._clock.monotonic_s() + CLOSE_S + self.settings.drain_limit_s)

    # -- what leaders ask, from any thread

    def leadership(self, role: int) -> Leadership | None:
        """Return the term in which this process leads *role* right now, None when it does not."""
        return self.roles[role].leadership(self._clock.monotonic_s())

    def lease_s(self, role: int) -> float:
        """Return for how many seconds the leadership of *role* holds by itself; 0 when there is none."""
        return max(0.0, self.roles[role].lease_until_s() - self._clock.monotonic_s())

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._pulse()
        except KafkaException as error:
            self.error = BrokerError(
                f"election {self.settings.group_id}: {error.args[0].str()}; this process leads nothing any"
                " more"
            )
        except Exception as error:
            logger.exception("election %(group)s ended", {"group": self.settings.group_id})
            self.error = BrokerError(
                f"election {self.settings.group_id}: {error!r}; this process leads nothing any more"
            )
        try:
            deadline_s = self._clock.monotonic_s() + (0.0 if self.error else self.settings.drain_limit_s)
            self._act(
                [event for role in self.roles for event in role.close(self._clock.monotonic_s())], deadline_s
            )
        finally:
            self._close_clients()
            if self.error is not None:
                self._handler.failed(self.error)

    def _pulse(self) -> None:
        now_s = self._clock.monotonic_s()
        wakes = [at_s for role in self.roles if (at_s := role.wake_at_s()) is not None]
        timeout_s = max(0.0, min([POLL_S, *(at_s - now_s for at_s in wakes)]))
        first = self._consumer.poll(timeout_s)
        came = [] if first is None else [first, *self._consumer.consume(LIMIT_DRAIN - 1, 0)]
        for message in came if self.skipper is None else self.skipper.sift(self._consumer, came):
            self._take(message)
        for role in self.roles:
            events, beat = role.tick(self._clock.monotonic_s(), self._clock.now_ms() * 1_000_000)
            self._act(events)
            if beat is not None:
                self._send(role, beat)
        self._producer.poll(0)
        self._look_again()

    def _look_again(self) -> None:
        """While in trouble and with nothing to lead: ask whether the broker is back.

        A standby receives no other sign of the broker.
        """
        now_s = self._clock.monotonic_s()
        if (
            not self._trouble.under_way
            or self._is_refused
            or now_s < self._looked_s + LOOK_S
            or any(self.lease_s(role.role) for role in self.roles)
        ):
            return
        self._looked_s = now_s
        try:
            self._consumer.list_topics(self.settings.leader_topic, timeout=POLL_S)
        except KafkaException:
            return
        self._trouble.ends()

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            self._warn(error)
            return
        partition = message.partition() or 0
        if partition < len(self.roles):
            self._act(
                self.roles[partition].received(
                    message.value(), message.offset() or 0, self._clock.monotonic_s()
                )
            )

    def _send(self, role: RoleElection, beat: LeaderRecord) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                self._warn(error)
                role.unsent(beat.number, self._clock.monotonic_s())
            else:
                self._trouble_ends()

        try:
            self._producer.produce(
                self.settings.leader_topic, beat.encode(), partition=role.role, on_delivery=delivered
            )
        except (KafkaException, BufferError) as error:
            why = error.args[0]
            if isinstance(why, KafkaError):
                self._warn(why)
            role.unsent(beat.number, self._clock.monotonic_s())

    def _warn(self, error: KafkaError) -> None:
        """Log an error once, until the broker has answered again; raise errors that no waiting cures."""
        if error.fatal():
            raise KafkaException(error)
        self._looked_s = self._clock.monotonic_s()
        if error.code() in UNAUTHORIZED:
            self._is_refused = True
            self._trouble.strikes("rights", f"{error.str().removesuffix('.')}: {RIGHTS}")
        elif error.code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL:
            self._is_refused = True
            if not self._trouble.has("group"):  # asking takes time
                self._others = others_in(self.settings.producer, self.settings.group_id, "harvester")
            self._trouble.strikes("group", self._others)
        else:
            self._trouble.strikes("broker", f"{error.str()}; check that the broker is reachable")

    def _trouble_ends(self) -> None:
        self._is_refused = False
        self._trouble.ends()

    def _act(self, events: Iterable[LeadershipEvent], deadline_s: float | None = None) -> None:
        revoked = []
        for event in events:
            held = event.leadership
            fields = {"group": self.settings.group_id, "shard": held.role, "epoch": held.epoch}
            match event:
                case Acquired():
                    self._trouble_ends()
                    logger.info("leader of shard %(shard)d in epoch %(epoch)d", fields)
                    self._handler.acquired(held)
                case Fenced(reason=reason):
                    logger.warning(
                        "fenced as leader of shard %(shard)d in epoch %(epoch)d: %(reason)s",
                        {**fields, "reason": reason},
                    )
                    self._handler.fenced(held, reason)
                case Revoked():
                    logger.info("no longer leader of shard %(shard)d in epoch %(epoch)d", fields)
                    revoked.append(held)
        if revoked:
            self._handler.revoked(revoked, self._clock.monotonic_s() if deadline_s is None else deadline_s)

    # -- the group's callbacks, inside poll

    def _on_assign(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        if any(role.phase is Phase.CLOSED for role in self.roles):
            return  # a rebalance ended while the consumer closes: it gives back what it is given
        self._trouble_ends()
        placed = []
        for each in partitions:
            end = self._end(consumer, each)
            placed.append(TopicPartition(each.topic, each.partition, end))
            if self.skipper is not None:
                self.skipper.begin(each.topic, each.partition, end)
            if each.partition < len(self.roles):
                role = self.roles[each.partition]
                now_s = self._clock.monotonic_s()
                if (
                    role.phase is not Phase.STANDBY
                ):  # an eager assignor gives again what it has just taken; a lost one may too
                    self._act(role.revoked(now_s))
                self._act(role.assigned(max(end, 0), now_s))
        (consumer.assign if self.settings.interop else consumer.incremental_assign)(placed)

    def _end(self, consumer: Any, place: TopicPartition) -> int:
        """Return where the partition ends now: what lies below was not written for this assignment and
        proves nothing.
        """
        try:
            _, end = consumer.get_watermark_offsets(
                place, timeout=self.settings.heartbeat_timeout_s / 4, cached=False
            )
        except KafkaException as error:
            logger.warning(
                "election %(group)s: the end of partition %(partition)d is not known: %(error)s",
                {"group": self.settings.group_id, "partition": place.partition, "error": error.args[0].str()},
            )
            return -1  # OFFSET_END: the client finds it itself, later
        return int(end)

    def _on_revoke(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._give_back(partitions, self._clock.monotonic_s() + self.settings.drain_limit_s)
        if self.settings.interop:
            consumer.unassign()
        else:
            consumer.incremental_unassign(partitions)

    def _on_lost(self, consumer: Any, partitions: list[TopicPartition]) -> None:
        self._give_back(partitions, self._clock.monotonic_s())

    def _give_back(self, partitions: Sequence[TopicPartition], deadline_s: float) -> None:
        now_s = self._clock.monotonic_s()
        if self.skipper is not None:
            for each in partitions:
                self.skipper.forget(each.topic, each.partition)
        mine = [self.roles[each.partition] for each in partitions if each.partition < len(self.roles)]
        self._act([event for role in mine for event in role.revoked(now_s)], deadline_s)

    # -- clients

    def _consumer_config(self) -> dict[str, Any]:
        settings = self.settings
        static = {} if settings.instance_id is None else {"group.instance.id": settings.instance_id}
        return {
            **settings.consumer,
            "group.id": settings.group_id,
            **static,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "latest",
            "session.timeout.ms": int(settings.session_timeout_s * 1000),
            "heartbeat.interval.ms": max(100, int(settings.heartbeat_timeout_s * 250)),
            "max.poll.interval.ms": int(settings.session_timeout_s * 2000),
            "partition.assignment.strategy": "range,roundrobin" if settings.interop else "cooperative-sticky",
        }

    def _producer_config(self) -> dict[str, Any]:
        return {
            **self.settings.producer,
            "acks": "all",
            "delivery.timeout.ms": int(self.settings.heartbeat_timeout_s * 1000),
            "linger.ms": 0,
        }

    def _check_topic(self, consumer: Any) -> None:
        topic, roles = self.settings.leader_topic, self.settings.roles
        try:
            found = consumer.list_topics(topic, timeout=METADATA_S).topics[topic]
        except KafkaException as error:
            raise BrokerError(
                f"leader topic {topic}: {error.args[0].str()}; check that the broker is reachable"
            ) from error
        if found.error is not None:
            raise TopicError(
                f"leader topic {topic}: {found.error.str()}; create it with {roles} partition(s)"
            )
        count = len(found.partitions)
        if count != roles and not (self.settings.interop and count):
            raise TopicError(
                f"leader topic {topic} has {count} partition(s) for {roles} role(s); every process must use"
                " the same number, that of the topic's partitions"
            )

    def _close_clients(self) -> None:
        """Leave the group.

        A client that hangs is abandoned after a while: the process must be able to end.
        """
        consumer, producer = self._consumer, self._producer
        if self.skipper is not None:
            self.skipper.close()

        def close() -> None:
            try:
                consumer.close()
            except (KafkaException, RuntimeError) as error:
                logger.warning(
                    "election %(group)s: the consumer did not close: %(error)s",
                    {"group": self.settings.group_id, "error": error},
                )

        closing = threading.Thread(target=close, name="holdfast-election-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)
        producer.purge()
        self._producer = None
