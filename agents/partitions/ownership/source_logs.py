"""Which logs a worker is about to fold: a topic that was deleted and made again has another id under the same
name.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.clients.topics.admin import Admin
from holdfast.config import Settings
from holdfast.core.engine.state.source_ids import SOURCE_IDS_FORMAT, SourceIds
from holdfast.tables.partition import Partition


def learn_sources(settings: Settings, parts: Sequence[Partition]) -> None:
    """Tell each of *parts* the ids that its sources have now; its `activate` holds them against those that it
    has folded.

    Blocks; raises BrokerError without an answer, TopicError for a source that is not there.
    """
    if not parts:
        return
    found = Admin(settings).topic_ids({topic for part in parts for topic in part.processor.topics})
    for part in parts:
        told = {topic: found.topics[topic] for topic in part.processor.topics}
        part.sources = SourceIds(SOURCE_IDS_FORMAT, found.cluster_id, told)
