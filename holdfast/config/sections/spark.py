"""Settings of Spark, which runs replays, checks and landings; options of a command override them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.config.kafka_properties import KafkaProperties
from holdfast.config.sections.section import Section, setting


@dataclass(frozen=True, kw_only=True)
class SparkSettings(Section):
    """Section `[spark]`: where Spark runs, how much memory its driver has, and how long it waits for a
    cluster.
    """

    spark_master: str = setting(
        "local[*]", "Spark master of replays, checks and landings; local[*] takes every core"
    )
    spark_memory: str | None = setting(
        None, "heap of Spark's driver; by default 1g for a local master, and Spark's own for others"
    )
    spark_executors_timeout_s: float = setting(
        300.0,
        "how long a job on a cluster may wait for an executor before it is given up",
        low=1,
        high=86_400,
    )


_SECRET = re.compile("secret|password|token|access[.]?key|credential", re.IGNORECASE)
"""The properties that Spark itself redacts, and the keys of object stores."""


def is_spark_secret(name: str) -> bool:
    """Return whether the value of a property of Spark must never be printed.

    >>> is_spark_secret("spark.hadoop.fs.s3a.access.key"), is_spark_secret("spark.executor.memory")
    (True, False)
    """
    return _SECRET.search(name) is not None


class SparkProperties(KafkaProperties):
    """Properties of Spark by their full names, which cannot change and never print a secret."""

    __slots__ = ()

    @staticmethod
    def is_secret(name: str) -> bool:
        return is_spark_secret(name)
