"""The audit topic: who did what in the console, and what came of it."""

from __future__ import annotations

import logging

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message

from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.errors import BrokerError
from holdfast.kafka.clients import make_writer

logger = logging.getLogger(__name__)

TIMEOUT_S = 5.0


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the audit, as JSON; its key is *act*, which the two records of an act share.

    *outcome* is `asked` before anything is done, then `done` or `failed`. *who* is what that person said on
    signing in, *subject* what an OpenID provider calls that one, *address* where the request came from.
    """

    act: str
    at_ms: int
    who: str
    address: str
    what: str
    on: str
    outcome: str
    more: str = ""
    subject: str = ""


class AuditTrail:
    """Writes to the audit topic. Calls block, and may come from any thread."""

    def __init__(self, settings: Settings, topic: str, clock: Clock = system_clock) -> None:
        self._settings, self._topic, self._clock = settings, topic, clock

    def write(self, record: AuditRecord) -> None:
        """Return once the record is in the log; BrokerError when it is not known to be."""
        outcome: list[KafkaError | None] = []

        def delivered(error: KafkaError | None, sent: Message) -> None:
            outcome.append(error)

        config = self._settings.producer(
            **{"enable.idempotence": True, "message.timeout.ms": int(TIMEOUT_S * 1000)}
        )
        producer = make_writer(config, logger=logger)
        try:
            producer.produce(
                self._topic, msgspec.json.encode(record), record.act.encode(), on_delivery=delivered
            )
            producer.flush(TIMEOUT_S + 1)
        except (KafkaException, BufferError) as error:
            raise BrokerError(f"cannot write to the audit topic {self._topic}: {error}") from error
        if not outcome or outcome[0] is not None:
            why = f"no acknowledgement within {TIMEOUT_S:g} s" if not outcome else outcome[0].str()  # type: ignore[union-attr]
            raise BrokerError(f"the audit topic {self._topic} did not take a record: {why}; does it exist?")
