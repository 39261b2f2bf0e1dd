"""The part of the demo that folds the log again, with and without Spark, and holds three hashes side by
side.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.clock import system_clock
from holdfast.core.engine.declared.processor import Processor
from holdfast.dev.demo.environment import DemoEnvironment
from holdfast.dev.demo.narrator import HASH_SHOWN, Teller, Way, require_one_hash
from holdfast.dev.demo.processes.table_reader import Snapshot
from holdfast.errors import DemoError
from holdfast.pipeline.landing.land import land
from holdfast.pipeline.landing.options import LandOptions
from holdfast.pipeline.replay import ReplayOptions, replay
from holdfast.pipeline.spark.session import SparkOptions, open_session


class Proof:
    """Folds what the workers have folded, by two other ways."""

    def __init__(
        self, stage: DemoEnvironment, processor: Processor[Any, Any], teller: Teller, ends: Mapping[int, int]
    ) -> None:
        self._stage, self._processor, self._teller = stage, processor, teller
        self._ends = ends
        self._records = sum(end + 1 for end in ends.values())
        self._lake = str(stage.folder / "lake")
        # Compiles less: a job of seconds is over before better code would pay.
        self._spark = SparkOptions(quick=True, log_dir=stage.folder / "spark", app_name="holdfast-demo")

    def ways(self, table: Snapshot) -> list[Way]:
        """Return the three ways to the state; DemoError unless all lead to the hash of the live *table*."""
        live = Way(
            name="live table", digest=table.digest, how="read through both workers", seconds=table.seconds
        )
        with self._teller.step("Fold the log again, in one Python process, from the topic"):
            self._teller.waiting("folding")
            local = self._replayed("local replay", "of the topic", ReplayOptions(engine="local", rows=False))
        with self._teller.step("Land the log in a Delta table, without a JVM"):
            self._land()
        landed = self._without_spark() if self._stage.is_embedded else self._on_spark()
        ways = [live, local, landed]
        require_one_hash(ways)
        return ways

    def _on_spark(self) -> Way:
        with self._teller.step("Fold the Delta table, on Spark"):
            self._teller.waiting("starting Spark")
            options = ReplayOptions(
                engine="spark", source="bronze", lake=self._lake, rows=False, spark=self._spark
            )
            with open_session(self._spark):
                self._teller.waiting("folding")
                way = self._replayed("Spark replay", "of the Delta table", options)
                self._teller.waiting("stopping Spark")
        return way

    def _without_spark(self) -> Way:
        with self._teller.step(
            "Fold the Delta table, in one Python process; Spark is left out, for it needs a JDK"
        ):
            self._teller.waiting("folding")
            options = ReplayOptions(engine="local", source="bronze", lake=self._lake, rows=False)
            return self._replayed("lake replay", "of the Delta table", options)

    def _land(self) -> None:
        self._teller.waiting("landing")
        began_s = system_clock.monotonic_s()
        options = LandOptions(engine="local")
        report = land(self._stage.settings, self._processor.topics[0], self._lake, options=options)
        took_s = system_clock.monotonic_s() - began_s
        if report.vector != {place: end + 1 for place, end in self._ends.items()}:
            raise DemoError(
                f"landing reached {report.vector}, but the topic's last offsets are {dict(self._ends)}"
            )
        self._teller.say(f"{report.rows:,} records with coordinates and times in {took_s:.1f} s.")

    def _replayed(self, name: str, source: str, options: ReplayOptions) -> Way:
        began_s = system_clock.monotonic_s()
        replayed = replay(self._processor, self._stage.settings, options)
        took_s = system_clock.monotonic_s() - began_s
        if replayed.records != self._records:
            raise DemoError(f"{name} folded {replayed.records} records, the topic holds {self._records}")
        self._teller.say(
            f"{replayed.records:,} records in {took_s:.1f} s. State: {replayed.digest[:HASH_SHOWN]}"
        )
        return Way(
            name=name, digest=replayed.digest, how=f"{replayed.records:,} records {source}", seconds=took_s
        )
