"""The base of every form of claim consumer: handing out messages, commits, and status queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.clients.claims.claiming.engine import ClaimEngine
from holdfast.clients.claims.claiming.queue import Handout
from holdfast.clients.claims.messages import ClaimedBatch, ClaimedMessage
from holdfast.core.kafka.topic_partition import TopicPartition
from holdfast.core.member.actions import DeliveryToken, Notify
from holdfast.core.member.claim.local_claims import ClaimView


class ConsumerBase:
    """The part of a consumer that never waits."""

    def __init__(self, engine: ClaimEngine) -> None:
        self._engine, self._delivery = engine, engine.delivery
        self._handout: Handout | None = None

    # -- handing out

    def _next_message(self) -> ClaimedMessage | None:
        """Return the next message, None when no message may be handed out now.

        The gate is checked last, for a message that is chosen and made, and the caller returns at once: a
        process that was frozen, or an event loop that was blocked, hands out nothing once the claim may be
        over (PROTOCOL.md#the-lease).
        """
        engine, delivery = self._engine, self._delivery
        while True:
            handout = self._handout
            if handout is None:
                handout = self._handout = delivery.take_handout()
                if handout is None:
                    return None
            at, batch = handout.at, handout.batch
            message = ClaimedMessage(engine, batch.lease, batch.messages[at])
            handout.at = at + 1
            last = handout.at == len(batch.messages)
            if delivery.may_deliver(batch.lease):
                if last:
                    self._handout = None
                    delivery.used_up(handout)
                return message
            handout.at = at
            self._handout = None
            delivery.set_aside(handout)

    def _next_batch(self) -> ClaimedBatch | None:
        """Return the next batch, first the rest of one begun message by message; None without one."""
        handout, self._handout = self._handout, None
        if handout is not None:
            self._delivery.set_aside(handout)
        handout = self._delivery.take_handout()
        if handout is None:
            return None
        rest = handout.rest()
        batch = ClaimedBatch(self._engine, rest)
        at, handout.at = handout.at, len(handout.batch.messages)
        if self._delivery.may_deliver(rest.lease):
            self._delivery.used_up(handout)
            return batch
        handout.at = at
        self._delivery.set_aside(handout)
        return None

    def _is_over(self) -> bool:
        """Return whether no message will ever come again; raises what the consumer failed of."""
        self._engine.raise_failure()
        return self._engine.over

    # -- commits

    def commit(self, done: ClaimedMessage | DeliveryToken) -> None:
        """Note that a message is done; the log has it with the next heartbeat or `flush`.

        Raises CommitError and ClaimLostError.
        """
        self._engine.commit(done if isinstance(done, DeliveryToken) else done.token)

    def commit_many(self, done: Sequence[ClaimedMessage | DeliveryToken]) -> None:
        """Note that messages are done, of any partitions and in any order.

        Raises at the first that cannot be, with those before it noted.
        """
        for each in done:
            self.commit(each)

    # -- what can be asked

    @property
    def claims(self) -> Mapping[TopicPartition, ClaimView]:
        """Return the claims that are held now, by topic and partition."""
        return self._engine.ask(lambda member: dict(member.claims))

    @property
    def load(self) -> int:
        """Return how many claims are held."""
        return self._engine.ask(lambda member: member.load)

    @property
    def lag(self) -> int:
        """Return the lag of the claims held, in messages, by the ends of their logs as last looked up."""
        return self._engine.ask(lambda member: member.lag)

    @property
    def topic_claims(self) -> tuple[str, ...]:
        """Return the topics whose partition 0 is held: with *whole_topic*, those held as a whole."""
        return self._engine.ask(lambda member: member.topics_held)

    @property
    def recent_events(self) -> tuple[Notify, ...]:
        """Return the latest events, oldest first, at most LIMIT_EVENTS: claims won, lost, released and
        why.
        """
        return self._engine.events.seen()

    @property
    def terminated(self) -> bool:
        """Return whether the consumer has ended, by `terminate` or by a failure."""
        return self._engine.ended.is_set()

    @property
    def group(self) -> str:
        return self._engine.member_settings.group_id

    @property
    def client(self) -> str:
        return self._engine.member_settings.client_id

    @property
    def instance(self) -> str:
        """Return the id that distinguishes this process from others under the same client id."""
        return self._engine.member_settings.instance_id

    def counters(self) -> dict[str, Any]:
        """Return numbers for a metrics page: queued messages, records that could not be decoded or read, and
        refused commits to Kafka.
        """
        return self._engine.counters()
