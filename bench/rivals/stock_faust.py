"""Rival: a stock faust-streaming agent with a RocksDB table, as its documentation shows.

RIVAL_BOOTSTRAP=... RIVAL_TOPIC=... RIVAL_RECORDS=N RIVAL_APP=... python -P -m bench.rivals.stock_faust
--datadir D worker -l info
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from typing import Any

import faust

APP, RECORDS = os.environ.get("RIVAL_APP", "stock"), int(os.environ.get("RIVAL_RECORDS", "50000"))
app = faust.App(
    APP,
    broker="kafka://" + os.environ.get("RIVAL_BOOTSTRAP", "127.0.0.1:9092"),
    store="rocksdb://",
    topic_allow_declare=False,
    topic_disable_leader=True,
    web_enabled=False,
    table_standby_replicas=0,
    value_serializer="raw",
    key_serializer="raw",
    consumer_auto_offset_reset="earliest",
)
source = app.topic(
    os.environ.get("RIVAL_TOPIC", "source"), key_type=bytes, value_type=bytes, value_serializer="raw"
)
table: Any = app.Table("t", key_type=bytes, value_type=bytes, partitions=4, options={"driver": "rocksdict"})
ROW = struct.Struct(">qqq")
seen: dict[str, Any] = {"records": 0}


@app.agent(source)
async def fold(stream: Any) -> None:
    async for value in stream:
        if not seen["records"]:
            seen["started_s"], seen["cpu_s"] = time.perf_counter(), time.process_time()
        _, _, time_s, instance, client, rest = value.split(b"/", 5)
        key, _, offset = rest.rpartition(b"/")
        old = table.get(key)
        table[key] = (
            ROW.pack(int(time_s), int(offset), (ROW.unpack_from(old)[2] if old else 0) + 1)
            + instance
            + b"/"
            + client
        )
        seen["records"] += 1
        if seen["records"] == RECORDS:
            seen["finish"] = asyncio.ensure_future(finish())


async def finish() -> None:
    producer: Any = app.producer
    while producer.buffer.size:  # noqa: ASYNC110  stock Faust offers nothing to wait on
        await asyncio.sleep(0.01)
    await producer.flush()
    wall_s, cpu_s = time.perf_counter() - seen["started_s"], time.process_time() - seen["cpu_s"]
    print(
        f"RESULT stock-faust rate={RECORDS / wall_s:.0f} wall_s={wall_s:.2f}"
        f" cpu_us={cpu_s / RECORDS * 1e6:.2f}",
        flush=True,
    )
    os._exit(0)


if __name__ == "__main__":
    app.main()
