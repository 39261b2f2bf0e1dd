"""Requests to both brokers. Each scenario is a conversation, and its transcript is the same on Apache
Kafka.
"""

from __future__ import annotations

from tests.embedded.transcripts import (
    group_scenarios,
    group_state_scenarios,
    log_scenarios,
    order_scenarios,
    record_scenarios,
    topic_scenarios,
    transaction_scenarios,
    version_scenarios,
)
from tests.embedded.transcripts.asking import SCENARIOS
from tests.embedded.transcripts.group_state_scenarios import SLOW

__all__ = [
    "SCENARIOS",
    "SLOW",
    "group_scenarios",
    "group_state_scenarios",
    "log_scenarios",
    "order_scenarios",
    "record_scenarios",
    "topic_scenarios",
    "transaction_scenarios",
    "version_scenarios",
]
