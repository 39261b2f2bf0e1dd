"""Fetched records as the columns of a bronze table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.kafka.fetching.records import Records
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
"""What a file holds: the columns that the table is partitioned by are in its path."""


def columns_of(records: Records, landed_at_ms: int) -> pa.RecordBatch:
    """Return *records* of one partition as they stand in a file."""
    count = len(records)
    ms = np.array(records.times_ms, np.int64)
    clamped = np.clip(ms, LEAST_TIME_MS, LAST_TIME_MS)
    stops = np.diff([0, *(stop for stop, _ in records.origins)])
    broker_time = np.repeat([int(origin.broker_time) for _, origin in records.origins], stops)
    epochs = np.repeat([origin.leader_epoch for _, origin in records.origins], stops)
    arrays: dict[str, Any] = {
        "offset": np.arange(records.offsets.start, records.offsets.stop)
        if isinstance(records.offsets, range)
        else records.offsets,
        "timestamp": clamped * 1000,
        "timestamp_type": broker_time.astype(np.int32),
        "key": records.keys,
        "value": records.values,
        "headers": _headers(records),
        "timestamp_ms": ms,
        "landed_at": np.full(count, landed_at_ms * 1000),
        "date": (clamped // DAY_MS).astype(np.int32),
        "leader_epoch": pa.array(epochs, pa.int32(), mask=epochs < 0),
    }
    return pa.RecordBatch.from_arrays(
        [_array(arrays[f.name], f.type) for f in FILE_SCHEMA], schema=FILE_SCHEMA
    )


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    return values if isinstance(values, pa.Array) else pa.array(values, kind)


def _headers(records: Records) -> pa.Array:
    """Return the headers; null where there are none, as Spark's connector has it."""
    if not any(records.headers):
        return pa.nulls(len(records), HEADERS)
    return pa.array([each or None for each in records.headers], HEADERS)
