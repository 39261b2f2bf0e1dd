"""One Spark session for all tests of the folder, and the broker's settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from holdfast.config import Settings
from holdfast.dev.fixtures import FreshTopic, SessionBroker
from holdfast.pipeline.spark.session import SparkOptions, is_gone, open_session
from tests.pipeline.accounts import Log
from tests.support.parts import part
from tests.support.patience import DEADLINE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOR_TINY_DATA = {
    "spark.sql.shuffle.partitions": "2",
    # Spark would compile each plan to Java for the few rows that it is run on. Without, it interprets the
    # same plan.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.databricks.delta.snapshotPartitions": "1",
}
"""Settings of Spark for tests whose tables have some hundred rows: landings take a quarter less processor
time. Tests that start Spark in a process of its own (`test_shipping`, the last of the killed landings, the
demo) keep the defaults.
"""

MakeTopic = Callable[[Log], str]


class LiveSpark:
    """Gives a Spark session, and another one where the JVM of the last is gone: that costs the test that lost
    it, and none of the others.
    """

    def __init__(self, log_dir: Path) -> None:
        self._options = SparkOptions(master="local[2]", quick=True, conf=FOR_TINY_DATA, log_dir=log_dir)
        self._opened = ExitStack()
        self._session: SparkSession | None = None

    def session(self) -> SparkSession:
        if self._session is not None and is_gone(self._session):
            self.close()
        if self._session is None:
            self._session = self._opened.enter_context(open_session(self._options))
        return self._session

    def close(self) -> None:
        self._session = None
        self._opened.close()


@pytest.fixture(scope="session")
def live_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveSpark]:
    live = LiveSpark(tmp_path_factory.mktemp("spark-log"))
    try:
        yield live
    finally:
        live.close()


@pytest.fixture
@part("spark")
def spark(live_spark: LiveSpark) -> SparkSession:
    """Give a session that `replay`, `land` and `verify` find active and use as it is."""
    return live_spark.session()


@pytest.fixture
def settings(broker: SessionBroker) -> Settings:
    return Settings(app="pipeline-test", kafka=dict(broker.config), stall_timeout_s=120, request_timeout_s=60)


@pytest.fixture
def make_topic(broker: SessionBroker, fresh_topic: FreshTopic) -> MakeTopic:
    """Give a maker of topics that hold a log, with the log's own times; offsets without gaps are Kafka's
    to choose.
    """

    def make(log: Log) -> str:
        topic = fresh_topic(
            "pipeline",
            partitions=len(log),
            config={"message.timestamp.type": "CreateTime", "retention.ms": "-1"},
        )
        producer = Producer(broker.client_config(**{"linger.ms": 5}))
        for partition, records in log.items():
            for each in records:
                headers = list(each.headers) or None
                producer.produce(
                    topic,
                    each.value,
                    each.key,
                    partition,
                    timestamp=each.at_ms,
                    headers=headers,  # type: ignore[arg-type]
                )
        assert producer.flush(DEADLINE_S) == 0
        return topic

    return make


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"
