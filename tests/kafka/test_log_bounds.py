"""The bounds of a log are asked again while a leader moves, and no longer than the deadline."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from holdfast.clock import Backoff, Clock, ManualClock, system_clock
from holdfast.kafka.reading import log_bounds as asking
from holdfast.kafka.reading.log_bounds import log_bounds


class Leader:
    """A consumer whose broker refuses with *codes* in turn, then answers."""

    def __init__(self, *codes: int) -> None:
        self.codes, self.asked = [*codes], 0

    def get_watermark_offsets(self, place: Any, timeout: float) -> tuple[int, int]:
        self.asked += 1
        assert (place.topic, place.partition) == ("orders", 3)
        if self.codes:
            raise KafkaException(KafkaError(self.codes.pop(0)))
        return 5, 17


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "BACKOFF", Backoff(0.001, 0.001))


def bounds(leader: Any, clock: Clock = system_clock) -> tuple[int, int]:
    return log_bounds(leader, ("orders", 3), 60.0, clock=clock)


def test_a_leader_that_moves_is_asked_again() -> None:
    leader = Leader(KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.UNKNOWN_LEADER_EPOCH)
    assert bounds(leader) == (5, 17)
    assert leader.asked == 3


def test_any_other_refusal_is_raised_at_once() -> None:
    leader = Leader(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        bounds(leader)
    assert leader.asked == 1


def test_the_last_refusal_is_raised_when_time_is_over() -> None:
    class Slow(ManualClock):
        def monotonic_s(self) -> float:
            self.advance_ms(10_000)
            return super().monotonic_s()

    leader = Leader(*[KafkaError.NOT_LEADER_FOR_PARTITION] * 100)
    with pytest.raises(KafkaException, match="NOT_LEADER"):
        bounds(leader, clock=Slow())
    assert leader.asked == 6, "within 60 s, of which each question takes 10"
