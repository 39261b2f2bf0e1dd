"""The ids of the logs that a worker is about to fold: a topic that was deleted and made again has another id
under the same name.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.agents.cluster import outs_of
from holdfast.clients.topics.admin import Admin
from holdfast.config import Settings
from holdfast.core.engine.state.source_ids import SOURCE_IDS_FORMAT, SourceIds
from holdfast.errors import TopicError
from holdfast.tables.partition import Partition


def learn_sources(settings: Settings, parts: Sequence[Partition]) -> None:
    """Give each of *parts* the current ids of the topics that it is a function of, which its `activate`
    compares with those that it has folded; and the ids of the topics that it sends to.

    Blocks; raises BrokerError without an answer, TopicError for a source that is not there.
    """
    if not parts:
        return
    logs = {part: part.processor.logs(settings.app) for part in parts}
    outs = {part: outs_of(part.processor, settings) for part in parts}
    asked = {topic for part in parts for topic in (*logs[part], *outs[part])}
    found = Admin(settings).topic_ids(asked, there_only=True)
    for part in parts:
        if missing := [topic for topic in logs[part] if topic not in found.topics]:
            raise TopicError(
                f"topic {missing[0]}, which {part.processor.table} is folded from, is not there; run"
                " `holdfast topics check`"
            )
        ids = {topic: found.topics[topic] for topic in logs[part]}
        part.owner.sources = SourceIds(SOURCE_IDS_FORMAT, found.cluster_id, ids)
        part.owner.out = {topic: found.topics[topic] for topic in outs[part] if topic in found.topics}
