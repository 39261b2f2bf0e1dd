"""Fetched records as the columns of a bronze table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.kafka.fetching.records import Records
from holdfast.pipeline.bronze.columns import FILE_SCHEMA, HEADERS, days_of, shown_ms


def columns_of(records: Records, landed_at_ms: int) -> pa.RecordBatch:
    """Return *records* of one partition as rows of a file."""
    count = len(records)
    ms = np.array(records.times_ms, np.int64)
    stops = np.diff([0, *(stop for stop, _ in records.origins)])
    broker_time = np.repeat([int(origin.broker_time) for _, origin in records.origins], stops)
    epochs = np.repeat([origin.leader_epoch for _, origin in records.origins], stops)
    arrays: dict[str, Any] = {
        "offset": np.arange(records.offsets.start, records.offsets.stop)
        if isinstance(records.offsets, range)
        else records.offsets,
        "timestamp": shown_ms(ms) * 1000,
        "timestamp_type": broker_time.astype(np.int32),
        "key": records.keys,
        "value": records.values,
        "headers": _headers(records),
        "timestamp_ms": ms,
        "landed_at": np.full(count, landed_at_ms * 1000),
        "date": days_of(ms),
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
