"""The columns of a bronze table as Arrow has them, and those of them that follow from others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute

from holdfast.pipeline.bronze.lake import LAST_TIME_MS, LEAST_TIME_MS

DAY_MS = 86_400_000
UTC = pa.timestamp("us", "UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", UTC),
        ("timestamp_type", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("timestamp_ms", pa.int64()),
        ("landed_at", UTC),
        ("date", pa.date32()),
        ("leader_epoch", pa.int32()),
    ]
)
"""The columns of holdfast/pipeline/bronze/lake.py as Arrow has them."""
PARTITIONED_BY = ["topic", "partition"]
FILE_SCHEMA = pa.schema([field for field in SCHEMA if field.name not in PARTITIONED_BY])
"""The columns of a file: those that the table is partitioned by are in its path."""


def shown_ms(times_ms: Any) -> Any:
    """Return Kafka's timestamps, in ms, as the columns `timestamp` and `date` show them: held between the
    years 1 and 9999.

    >>> shown_ms(np.array([5, -(2**63), 2**63 - 1])).tolist()
    [5, -62135596800000, 253402300799999]
    """
    return np.clip(times_ms, LEAST_TIME_MS, LAST_TIME_MS)


def days_of(times_ms: Any) -> Any:
    """Return the day in UTC of each timestamp, as days since 1970: what the column `date` shows.

    >>> days_of(np.array([-1, 0, 86_400_000])).tolist()
    [-1, 0, 1]
    """
    return (shown_ms(times_ms) // DAY_MS).astype(np.int32)


DERIVED = ("timestamp", "date")
"""Columns that follow from `timestamp_ms`: no digest covers them."""


def untrue(rows: pa.RecordBatch, name: str) -> Any:
    """Return for each row whether its column *name*, one of `DERIVED`, differs from the value that its
    `timestamp_ms` makes;
    """
    told = rows.column("timestamp_ms")
    times_ms = told.fill_null(0).to_numpy()
    if name == "timestamp":
        want = pa.array(shown_ms(times_ms) * 1000, UTC)
    else:
        want = pa.array(days_of(times_ms), pa.date32())
    wrong = compute.not_equal(rows.column(name), want).fill_null(True)
    return compute.and_(wrong, told.is_valid()).to_numpy(zero_copy_only=False)
