"""Settings of Spark, which runs replays, checks and landings; options of a command override them."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.config.section import Section, setting


@dataclass(frozen=True, kw_only=True)
class SparkSettings(Section):
    """Section `[spark]`: where Spark runs and how much memory its driver has."""

    spark_master: str = setting(
        "local[*]", "Spark master of replays, checks and landings; local[*] takes every core"
    )
    spark_memory: str = setting("1g", "heap of Spark's driver")
