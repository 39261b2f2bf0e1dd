"""The broker's own logs, folded by holdfast's processors: what they hold now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.state.codec import ROW, RowCodec, text_key
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.topic import TopicLog


def rows_of(
    settings: Settings, processor: Processor[Any, Any], refused: Callable[[int], None] = lambda count: None
) -> Iterator[tuple[int, str, Any]]:
    """Yield partition, key and row of all that *processor* makes of its topic as it is now. At the end
    *refused* gets how many records it could not read, if any.
    """
    with TopicLog(settings, str(processor.topics[0])) as log:
        # Most of the 50 partitions are empty where few producers are, and each that is read takes a while.
        holding = tuple(partition for partition, span in log.spans().items() if span.first < span.end)
    if not holding:
        return
    replayed = replay(  # compaction makes holes
        processor, settings, ReplayOptions(engine="local", allow_holes=True, partitions=holding)
    )
    codec: RowCodec[Any] = RowCodec(processor.row)
    count = 0
    for partition in sorted(replayed.applied):
        count += len(replayed.refused(partition))
        for key, value in replayed.state(partition):
            if key[:1] == ROW:
                yield partition, text_key(key), codec.decode(value)
    if count:
        refused(count)
