"""The identity of a topic among those that had its name, as a mark: an offset must be kept with it, since a
topic that was deleted and made again has others (PROTOCOL.md#topics-that-are-made-again).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from holdfast.core.claims.frames import topic_mark
from holdfast.kafka.clients import make_admin
from holdfast.kafka.librdkafka_log import Quiet

logger = logging.getLogger(__name__)
quiet: Any = Quiet(logger)

SLACK_S = 0.5
"""A request ends by its own deadline; this is for the answer to reach us."""


class TopicIdentities:
    """Asks for the marks of topics, on a connection of its own. Used from one thread."""

    def __init__(self, config: Mapping[str, Any], *, timeout_s: float) -> None:
        self._config, self._timeout_s = config, timeout_s
        self._admin: AdminClient | None = None

    def marks(self, topics: Collection[str]) -> dict[str, int | None]:
        """Return the mark of each topic, None where the broker knows no ids; raises KafkaException, also for
        a topic that is not there.
        """
        if not topics:
            return {}
        if self._admin is None:
            self._admin = make_admin(self._config, logger=quiet)
        self._admin.poll(0)
        asked = self._admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=self._timeout_s)
        try:
            return {
                topic: topic_mark(str(each.result(self._timeout_s + SLACK_S).topic_id))
                for topic, each in asked.items()
            }
        except FutureTimeoutError:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None

    def close(self) -> None:
        """Let go of the connection; the next question makes a new one."""
        self._admin = None


_NOTED = re.compile(r"holdfast topic ([1-9][0-9]{0,9})(;?)")


def metadata_of(mark: int | None) -> str:
    """Return the metadata to commit to Kafka with an offset: the topic that it is of.

    >>> metadata_of(1_234), metadata_of(None)
    ('holdfast topic 1234;', '')
    """
    return "" if mark is None else f"holdfast topic {mark};"


def is_of_another(metadata: str, mark: int | None) -> bool:
    """Return whether an offset that was committed with *metadata* (as `committed_text` returns it) is known
    to be of another topic than the one with this *mark* (None: not known).

    >>> [is_of_another("holdfast topic 7;5", mark) for mark in (7, 75, None)], is_of_another("", 8)
    ([False, True, False], False)

    Earlier versions wrote no semicolon: digits that follow may belong to it or not.

    >>> [is_of_another("holdfast topic 75", mark) for mark in (7, 75, 8)]
    [False, False, True]
    """
    noted = _NOTED.match(metadata)
    if noted is None or mark is None:
        return False
    return noted[1] != str(mark) if noted[2] else not noted[1].startswith(str(mark))
