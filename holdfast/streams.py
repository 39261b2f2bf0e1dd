"""Steps, aggregations, windows and joins: declarations that make a processor.

    from holdfast.streams import Tumbling, Windowed, count, final

    words  = count(name="words", source="words", decode=bytes.decode, key=str.lower)
    hourly = Windowed(name="hourly", source="views", decode=..., by=..., time=..., window=Tumbling("1h",
    grace="10m"),
                      fold=..., row=int, emit=final("hourly-views"))
    app = create_app([words, hourly])

See docs/tutorial-streams.md.
"""

from holdfast.core.streams.aggregations import (
    Mean,
    Ranked,
    aggregate,
    count,
    dedupe,
    latest,
    maximum,
    mean,
    minimum,
    reduce,
    top,
    total,
)
from holdfast.core.streams.distinct import Distinct, distinct, distinct_fold
from holdfast.core.streams.emitting import Final, Updates, final, updates
from holdfast.core.streams.joins.cogroup import cogroup
from holdfast.core.streams.joins.foreign import JoinForeign
from holdfast.core.streams.joins.stream_table import JoinStreamTable
from holdfast.core.streams.joins.table_history import Version
from holdfast.core.streams.joins.tables import Joined, JoinTables
from holdfast.core.streams.joins.within import JoinStreamRow, JoinWithin, LeftHeld, RightHeld
from holdfast.core.streams.steps import Branch, Filter, Map, Merge, Rekey
from holdfast.core.streams.windowing.rows import (
    OriginRow,
    StreamRow,
    WindowResult,
    WindowRow,
    parse_window_key,
    stream_key,
    window_key,
    windows_of,
)
from holdfast.core.streams.windowing.windowed import Windowed
from holdfast.core.streams.windowing.windows import Hopping, Session, Sliding, Tumbling

__all__ = [
    "Branch",
    "Distinct",
    "Filter",
    "Final",
    "Hopping",
    "JoinForeign",
    "JoinStreamRow",
    "JoinStreamTable",
    "JoinTables",
    "JoinWithin",
    "Joined",
    "LeftHeld",
    "Map",
    "Mean",
    "Merge",
    "OriginRow",
    "Ranked",
    "Rekey",
    "RightHeld",
    "Session",
    "Sliding",
    "StreamRow",
    "Tumbling",
    "Updates",
    "Version",
    "WindowResult",
    "WindowRow",
    "Windowed",
    "aggregate",
    "cogroup",
    "count",
    "dedupe",
    "distinct",
    "distinct_fold",
    "final",
    "latest",
    "maximum",
    "mean",
    "minimum",
    "parse_window_key",
    "reduce",
    "stream_key",
    "top",
    "total",
    "updates",
    "window_key",
    "windows_of",
]
