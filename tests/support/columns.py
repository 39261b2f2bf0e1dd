"""Columns of messages from librdkafka, which the feed's own columns must equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from confluent_kafka import Message

from holdfast.core.engine.declared.processor import Headers
from holdfast.kafka.fetching.records import Records


def take(records: Records, messages: Sequence[Message]) -> None:
    """Append *messages*, which follow those taken before."""
    offsets: Sequence[int] = [message.offset() or 0 for message in messages]
    if offsets[-1] - offsets[0] + 1 == len(offsets):
        offsets = range(offsets[0], offsets[-1] + 1)
    records.append(
        offsets,
        [message.timestamp()[1] for message in messages],
        [message.value() for message in messages],
        [message.key() for message in messages],
        [cast(Headers, tuple(message.headers() or ())) for message in messages],
    )
