"""When a record was written, as far as that can be believed."""

from __future__ import annotations

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from holdfast.clock import Clock

LIMIT_AHEAD_MS = 60_000
"""Times of a sender whose clock is further ahead of the reader's are not believed."""


def credible_ms(message: Message, before_ms: int, clock: Clock) -> int:
    """Return when *message* was written in ms: by the broker's clock, or by its sender's where the topic has
    CreateTime. *before_ms*, the time of the record before, where it has none, or one that lies in the future
    of the reader's *clock*: one such record must not have everything look old that is not.
    """
    kind, at_ms = message.timestamp()
    if kind == TIMESTAMP_LOG_APPEND_TIME:
        return at_ms
    if kind == TIMESTAMP_NOT_AVAILABLE or at_ms > clock.now_ms() + LIMIT_AHEAD_MS:
        return before_ms
    return at_ms
