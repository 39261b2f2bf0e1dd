"""A replay on Spark gives the bytes that a replay in this process gives."""

from __future__ import annotations

from tests.pipeline.conftest import live_spark, make_topic, settings, spark
from tests.pipeline.test_replay import test_both_engines_give_the_same_results_for_a_topic

__all__ = [
    "live_spark",
    "make_topic",
    "settings",
    "spark",
    "test_both_engines_give_the_same_results_for_a_topic",
]
