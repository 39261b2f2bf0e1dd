"""A program that uses a lake in an object store with Spark, configured by its environment: `python -m
tests.support.s3_spark land|land-some|race LAKE TOPIC BOOTSTRAP`.
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from confluent_kafka import Producer

from holdfast.config import Settings
from holdfast.errors import LakeError
from holdfast.pipeline.bronze.lake import bronze_path
from holdfast.pipeline.histories.fold import FoldOptions, fold
from holdfast.pipeline.landing.land import land
from holdfast.pipeline.landing.landing import Landing
from holdfast.pipeline.landing.local_table import LocalTable
from holdfast.pipeline.landing.options import LandOptions
from holdfast.pipeline.landing.task_table import TaskTable
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.spark.session import SparkOptions, open_session
from holdfast.pipeline.topic import TopicLog
from tests.pipeline.accounts import accounts
from tests.support.patience import DEADLINE_S

SPARK = SparkOptions(master="local[2]", quick=True)
ROUNDS = 6
SOME = 4


def landed(settings: Settings, lake: str, topic: str, *, commits: int | None = None) -> None:
    """Land the topic's records, a few at a time; after *commits* of them wait for the end of the input. So a
    landing that is to be killed leaves records to others, however late the kill comes.
    """
    options, numbers = LandOptions(engine="spark", max_records=120), count(1)

    def told(_: object) -> None:
        print("landed", flush=True)
        if next(numbers) == commits:
            sys.stdin.read()

    land(settings, topic, lake, options=options, spark=SPARK, progress=told)


def raced(settings: Settings, lake: str, topic: str) -> dict[str, Any]:
    """Have tasks of Spark and this process land the same records, fold the lake on Spark, and return the
    results.
    """
    path, lost, producer = bronze_path(lake, topic), 0, Producer(settings.client())
    with open_session(SPARK) as session, TopicLog(settings, topic) as log, ThreadPoolExecutor(3) as pool:
        for number in range(ROUNDS):
            for at in range(20):
                producer.produce(
                    topic, b"add k%d %d" % (at % 7, number), partition=at % 2, timestamp=1_000 + at
                )
            assert producer.flush(DEADLINE_S) == 0
            tables = [LocalTable(settings, path), *(TaskTable(session, settings, path) for _ in range(2))]
            made = [Landing(each, settings, log, LandOptions()) for each in tables]
            errors = [each.exception(180) for each in [pool.submit(one.step, one.ends()) for one in made]]
            assert all(error is None or isinstance(error, LakeError) for error in errors), errors
            lost += sum(error is not None for error in errors)
        told = {
            engine: replay(
                accounts(topic), settings, ReplayOptions(engine=engine, source="bronze", lake=lake)
            )
            for engine in ("local", "spark")
        }
        folded = fold(accounts(topic), settings, FoldOptions(lake=lake, engine="spark"))
    return {
        "lost": lost,
        "engines": [each.engine for each in told.values()],
        "digests": [*(each.digest for each in told.values()), folded.digest],
        "records": folded.records,
    }


def main() -> None:
    what, lake, topic, bootstrap = sys.argv[1:]
    settings = Settings(
        app="s3", kafka={"bootstrap.servers": bootstrap}, request_timeout_s=20, stall_timeout_s=60
    )
    if what == "land":
        landed(settings, lake, topic)
    elif what == "land-some":
        landed(settings, lake, topic, commits=SOME)
    else:
        print(json.dumps(raced(settings, lake, topic)), flush=True)


if __name__ == "__main__":
    main()
