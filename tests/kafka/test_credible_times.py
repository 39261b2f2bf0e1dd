"""Times of records that cannot be believed."""

from __future__ import annotations

from typing import cast

from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Message,
)

from holdfast.clock import ManualClock
from holdfast.kafka.reading.record_times import LIMIT_AHEAD_MS, credible_ms

NOW_MS = 1_700_000_000_000


class Record:
    def __init__(self, kind: int, at_ms: int) -> None:
        self._told = kind, at_ms

    def timestamp(self) -> tuple[int, int]:
        return self._told


def told(kind: int, at_ms: int) -> int:
    return credible_ms(cast(Message, Record(kind, at_ms)), 7, ManualClock(now_ms=NOW_MS))


def test_a_senders_time_far_ahead_is_not_believed_and_the_brokers_is() -> None:
    assert told(TIMESTAMP_CREATE_TIME, NOW_MS - 5) == NOW_MS - 5
    assert told(TIMESTAMP_CREATE_TIME, NOW_MS + LIMIT_AHEAD_MS) == NOW_MS + LIMIT_AHEAD_MS
    assert told(TIMESTAMP_CREATE_TIME, NOW_MS + LIMIT_AHEAD_MS + 1) == 7
    assert told(TIMESTAMP_CREATE_TIME, 1 << 62) == 7
    assert told(TIMESTAMP_LOG_APPEND_TIME, 1 << 62) == 1 << 62
    assert told(TIMESTAMP_NOT_AVAILABLE, -1) == 7
