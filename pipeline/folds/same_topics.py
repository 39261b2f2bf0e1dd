"""Checks that the topics that a lake holds are still those of that name: where a lake alone is folded, no
other check is made.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.errors import BrokerError, TopicError
from holdfast.pipeline.bronze.commits import history_of, last_landed
from holdfast.pipeline.bronze.lake import Landed, bronze_path, check_identity, open_table
from holdfast.pipeline.bronze.landed_notes import is_reached
from holdfast.pipeline.topic import TopicLog

logger = logging.getLogger(__name__)


def require_same_topics(processor: Processor[Any, Any], settings: Settings, lake: str) -> None:
    """Raise LakeError if a source or a global's topic is not the one that *lake* holds: the state that is
    compared with the fold, or continues it, is of the new one.
    """
    for path, topic, landed in _landed(processor, lake):
        if (found := _identity(settings, topic)) is not None:
            check_identity(path, landed, topic, found)


def warn_of_other_topics(processor: Processor[Any, Any], settings: Settings, lake: str) -> None:
    """Log which topics were made again since *lake* holds them, as far as brokers can be asked: a lake may be
    folded when its topics, and their Kafka, are gone.
    """
    if not is_reached(settings):
        return
    for path, topic, landed in _landed(processor, lake):
        try:
            found = _identity(settings, topic)
        except BrokerError as error:
            logger.warning(
                "%(path)s is folded without knowing whether its topic was made again: %(cause)s",
                {"path": path, "cause": str(error)},
            )
            return
        if found is not None and landed.topic == topic and found != landed.topic_id:
            logger.warning(
                "%(path)s holds the records of a topic %(topic)s that was deleted and made again since (its"
                " id was %(before)s, is %(now)s): a fold of it differs from the topic that has the name"
                " now",
                {"path": path, "topic": topic, "before": landed.topic_id, "now": found},
            )


def _identity(settings: Settings, topic: str) -> str | None:
    """Return the id of a topic, None where the lake alone has it; BrokerError if Kafka does not answer."""
    with TopicLog(settings, topic) as log:
        try:
            log.partitions()
        except TopicError:
            return None
        return log.identity()


def _landed(processor: Processor[Any, Any], lake: str) -> Iterator[tuple[str, str, Landed]]:
    for topic in dict.fromkeys((*processor.topics, *(str(each.topic) for each in processor.reads))):
        path = bronze_path(lake, topic)
        landed = last_landed(path, history_of(open_table(path)))
        if landed is not None:
            yield path, topic, landed
