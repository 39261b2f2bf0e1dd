"""Bronze tables as others read them: Spark SQL, DuckDB, Polars and pandas see the same rows."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from holdfast.config import Settings
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.pipeline.bronze.lake import COLUMNS, bronze_path
from holdfast.pipeline.landing.land import land
from holdfast.pipeline.landing.options import LandEngine, LandOptions
from tests.support.patience import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_MS = 1_700_000_000_123
ASKED = "offset", "timestamp", "timestamp_ms", "date", "key", "value", "timestamp_type"
WANTED = [
    (0, datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC), AT_MS, date(2023, 11, 14), b"k", b"one", 0),
    (1, datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC), 1 << 62, date(9999, 12, 31), None, b"far", 0),
    (2, datetime(2023, 11, 14, 22, 13, 20, 124_000, UTC), AT_MS + 1, date(2023, 11, 14), b"k", None, 0),
]


@pytest.fixture(params=["local", "spark"])
def table(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    broker: SessionBroker,
    settings: Settings,
    fresh_topic: FreshTopic,
    lake: Path,
) -> str:
    """Land three records of which one has no date, with each engine."""
    limits = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": str((1 << 63) - 1)}
    topic = fresh_topic("readers", config=limits)
    producer = Producer(broker.client_config())
    for at_ms, key, value in ((AT_MS, b"k", b"one"), (1 << 62, None, b"far"), (AT_MS + 1, b"k", None)):
        producer.produce(topic, value, key, 0, timestamp=at_ms, headers=[("trace", b"t")])
    assert producer.flush(DEADLINE_S) == 0
    engine: LandEngine = request.param
    land(settings, topic, str(lake), options=LandOptions(engine=engine))
    return bronze_path(str(lake), topic)


def plain(value: Any) -> Any:
    """Return a reader's values as Python's own types, times in UTC."""
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, datetime):
        value = value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC)
    return value


@pytest.mark.variants("spark")
def test_every_reader_sees_the_same_rows(spark: SparkSession, table: str) -> None:
    names, dataset = ", ".join(f"`{each}`" for each in ASKED), DeltaTable(table).to_pyarrow_dataset()
    found: dict[str, list[Any]] = {}
    # Collected by Arrow: Spark's own rows would show times in this process's time zone.
    by_sql = spark.sql(f"SELECT {names} FROM delta.`{table}` ORDER BY offset").toArrow()
    found["Spark SQL"] = [tuple(row.values()) for row in by_sql.to_pylist()]
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.register("bronze", dataset)
        columns = ", ".join(f'"{each}"' for each in ASKED)
        found["DuckDB"] = database.execute(f'SELECT {columns} FROM bronze ORDER BY "offset"').fetchall()
        days = database.execute("SELECT count(*) FROM bronze WHERE date = DATE '2023-11-14'").fetchall()
    frame = polars.scan_delta(table).sort("offset").select(ASKED).collect()
    found["Polars"] = frame.rows()
    pandas = dataset.to_table(columns=list(ASKED)).to_pandas().sort_values("offset")
    found["pandas"] = list(pandas.itertuples(index=False, name=None))
    told = {name: [tuple(map(plain, row)) for row in rows] for name, rows in found.items()}
    assert told == dict.fromkeys(found, WANTED)
    assert days == [(2,)], "a day can be asked for"
    assert dataset.schema.names == list(COLUMNS)
    headers = dataset.to_table(columns=["headers"]).column("headers").to_pylist()
    assert headers == [[{"key": "trace", "value": b"t"}]] * 3
