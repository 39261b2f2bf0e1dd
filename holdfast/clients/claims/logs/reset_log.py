"""The topic of resets: decisions are written to it and looked up there
(PROTOCOL.md#pausing-and-resetting-a-group).

Any member may find a partition that an unfinished reset holds; `settle` returns the frames that free it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, KafkaException, Message

from holdfast.clients.topics.admin import Admin
from holdfast.clients.topics.specs import UNPACKED
from holdfast.clients.topics.types import CreateTopic, TopicRole, TopicSpec
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.claims.claim_keys import ClaimKey
from holdfast.core.claims.claim_rows import Claim
from holdfast.core.claims.frames import ReleasingPartition
from holdfast.core.claims.resets import (
    RESETS_TOPIC,
    Decision,
    Decisions,
    ResetAbort,
    ResetCommit,
    decode_decision,
    encode_decision,
    final_mark,
    final_offset,
    held_by_reset,
    release,
)
from holdfast.errors import BrokerError, DecodeError
from holdfast.kafka.clients import make_writer, reader_options
from holdfast.kafka.reading.log_bounds import log_bounds
from holdfast.kafka.reading.log_reader import reading

logger = logging.getLogger(__name__)

PARTITION = 0
READ_RECORDS = 500


class ResetLog:
    """Decisions about resets.

    Nothing is kept between calls; each call ends within *timeout_s* of its last progress.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        topic: str = RESETS_TOPIC,
        timeout_s: float | None = None,
        clock: Clock = system_clock,
    ) -> None:
        self._settings, self._clock, self.topic = settings, clock, topic
        self._timeout_s = settings.request_timeout_s if timeout_s is None else timeout_s

    def ensure(self) -> None:
        """Create the topic where it is missing.

        It is kept for ever: if the record of a decision is gone, the decision was never made.
        """
        admin = Admin(self._settings, timeout_s=self._timeout_s, clock=self._clock)
        if admin.cluster([self.topic]).partitions(self.topic) is None:
            safe = {"min.insync.replicas": "2"} if self._settings.replication_factor >= 3 else {}
            spec = TopicSpec(
                name=self.topic,
                partitions=1,
                config={
                    "cleanup.policy": "delete",
                    "retention.ms": "-1",
                    "message.timestamp.type": "LogAppendTime",
                }
                | UNPACKED
                | safe,
                replication_factor=self._settings.replication_factor,
                role=TopicRole.SOURCE,
            )
            admin.apply([CreateTopic(spec=spec, partitions=1)])

    def decide(self, decision: Decision) -> Decision:
        """Append *decision* and return the one that counts: the first in the log about this reset, which may
        be another client's.

        BrokerError when it is not known to be written: then it may be in the log or not, and `decide` of an
        Abort finds out which.
        """
        offset = self._append(decision)
        found = self._read(offset + 1)[decision.reset_id]
        assert found is not None, "a decision that was just written is in the log"
        return found

    def decisions(self) -> Decisions:
        """Return all decisions there are."""
        return self._read(None)

    def _append(self, decision: Decision) -> int:
        value, outcome = encode_decision(decision), list[tuple[KafkaError | None, Message]]()
        overrides: dict[str, str | int | bool] = {
            "enable.idempotence": (
                False
            ),  # the same decision twice is one decision, and an id would have to be waited for
            "acks": "all",
            "linger.ms": 0,
            "message.timeout.ms": int(self._timeout_s * 1000),
            "message.max.bytes": 1 << 20,
        }
        producer = make_writer(self._settings.producer(**overrides), logger=logger)
        try:
            producer.produce(
                self.topic,
                value=value,
                key=decision.group.encode(),
                partition=PARTITION,
                on_delivery=lambda error, sent: outcome.append((error, sent)),
            )
            producer.flush(self._timeout_s + 1)
        except (KafkaException, BufferError) as error:
            raise BrokerError(
                f"a decision about group {decision.group} cannot be sent to {self.topic}: {error}"
            ) from error
        finally:
            producer.purge()
        if not outcome or outcome[0][0] is not None:
            why = f"no acknowledgement within {self._timeout_s:g} s" if not outcome else outcome[0][0].str()  # type: ignore[union-attr]
            raise BrokerError(
                f"a decision about group {decision.group} was not acknowledged by {self.topic}: {why}"
            )
        return outcome[0][1].offset() or 0

    def _read(self, end: int | None) -> Decisions:
        """Return the decisions below *end*; None is the present end of the topic."""
        # An open transaction of a stranger must not hide a decision.
        group = f"{self._settings.app}-resets-reader"
        config = self._settings.consumer(**reader_options(group, committed=False, wait_ms=10))
        found, place = Decisions(), (self.topic, PARTITION)
        with reading(
            self._settings, self.topic, config, logger=logger, clock=self._clock, limit=READ_RECORDS
        ) as reader:
            if end is None:
                listed = reader.consumer.list_topics(self.topic, timeout=self._timeout_s).topics.get(
                    self.topic
                )
                if listed is None or not listed.partitions:
                    return found  # no reset was ever decided
                _, end = log_bounds(reader.consumer, place, self._timeout_s, clock=self._clock)
            reader.assign({place: 0})
            ends = {place: end}
            for message in reader.until(lambda: reader.has_read(ends), idle_s=self._timeout_s):
                if (message.offset() or 0) < end:
                    self._note(message, found)
        return found

    def _note(self, message: Message, found: Decisions) -> None:
        try:
            found.add(decode_decision(message.value()))
        except DecodeError as error:
            logger.warning(
                "%(topic)s offset %(offset)s is not a decision: %(reason)s",
                {"topic": self.topic, "offset": message.offset(), "reason": str(error)},
            )


def settle(
    resets: ResetLog,
    held: Mapping[ClaimKey, Claim],
    *,
    client: str,
    now_s: int,
    is_silent: Callable[[Claim], bool],
    start: Callable[[ClaimKey], int],
) -> list[ReleasingPartition]:
    """Return the frames that free what unfinished resets hold of *held*.

    A reset that was decided is carried out at once. One that was not is given up if its administrator is
    silent: then it is unknown whether it will decide after all, so an abort is written, and the first
    decision in the log counts. *start* gives where a claim without a known offset begins.
    """
    by_reset: dict[str, list[ClaimKey]] = {}
    for key, claim in held.items():
        reset_id = held_by_reset(claim)
        if reset_id is not None:
            by_reset.setdefault(reset_id, []).append(key)
    if not by_reset:
        return []
    frames: list[ReleasingPartition] = []
    decisions = resets.decisions()
    for reset_id, keys in sorted(by_reset.items()):
        decision = decisions[reset_id]
        if decision is None:
            if not all(is_silent(held[key]) for key in keys):
                continue
            resets.ensure()
            reason = "its administrator fell silent before it was decided"
            decision = resets.decide(
                ResetAbort(
                    reset_id=reset_id, group=keys[0].group_id, client=client, at_s=now_s, reason=reason
                )
            )
        done = "carried out" if isinstance(decision, ResetCommit) else "given up"
        logger.warning(
            "reset %(reset)s of group %(group)s settled: %(outcome)s, %(partitions)d partitions",
            {"reset": reset_id, "group": keys[0].group_id, "outcome": done, "partitions": len(keys)},
        )
        for key in sorted(keys):
            offset = final_offset(decision, key, held[key])
            mark = None if offset is None else final_mark(decision, key, held[key])
            frames.append(release(key, held[key], start(key) if offset is None else offset, now_s, mark))
    return frames
