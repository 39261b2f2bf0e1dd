"""The options of a landing, and its report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from holdfast.pipeline.bronze.files import is_local
from holdfast.pipeline.bronze.lake import Landed, table_uri
from holdfast.pipeline.spark.session import SparkOptions, active_session, under_spark_submit

MAX_RECORDS = 500_000

LandEngine = Literal["auto", "local", "spark"]
Progress = Callable[[Landed], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LandOptions:
    """The options of a landing. *follow* continues until `stop`; otherwise only records committed at the
    start are landed.

    *max_records* bounds one commit, *every_s* is the shortest time between two commits when following; before
    that a commit is made when about *every_bytes* (as the table stores them) wait for it. *accept_loss*
    continues if records were deleted before they were landed, and notes the hole in the commit. *rebuild*
    reads the vector from the rows. *engine* "auto" is Spark for a master elsewhere, and where a session is
    active, else this process.
    """

    engine: LandEngine = "auto"
    follow: bool = False
    max_records: int = MAX_RECORDS
    every_s: float = 2.0
    every_bytes: int | None = None
    accept_loss: bool = False
    rebuild: bool = False


@dataclass(slots=True, kw_only=True)
class LandReport:
    """The progress of one landing. *vector* holds the end offsets that the table has reached, *ends* those
    that the topic was last seen to have; *committed_ms* is the time of the last commit.
    """

    topic: str
    path: str
    commits: int = 0
    offsets: int = 0
    rows: int = 0
    vector: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    lost: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    committed_ms: int | None = None

    @property
    def lag(self) -> dict[int, int]:
        """Return how many offsets of each partition are still to be landed."""
        return {at: max(0, end - self.vector.get(at, 0)) for at, end in sorted(self.ends.items())}


def chosen_engine(
    engine: LandEngine, lake: str, spark: SparkOptions | None
) -> tuple[Literal["local", "spark"], str]:
    """Return which engine lands, and why."""
    return engine_for(engine, lake, spark, in_session=active_session() is not None or under_spark_submit())


def engine_for(
    engine: LandEngine, lake: str, spark: SparkOptions | None, *, in_session: bool
) -> tuple[Literal["local", "spark"], str]:
    """Return which engine lands, and why; *in_session* where this process has a JVM with Spark already.

    >>> engine_for("auto", "/data/lake", None, in_session=False)
    ('local', 'the lake is in the file system of this machine')
    >>> engine_for("auto", "/data/lake", None, in_session=True)
    ('spark', 'a session is active')
    >>> engine_for("auto", "/data/lake", SparkOptions(master="spark://host:7077"), in_session=False)
    ('spark', 'the master is spark://host:7077')
    >>> engine_for("auto", "s3a://lake", None, in_session=False)
    ('local', 'this process reaches the lake')
    >>> engine_for("local", "s3a://lake", None, in_session=True)
    ('local', 'it was asked for')
    """
    if engine != "auto":
        return engine, "it was asked for"
    if in_session:
        return "spark", "a session is active"
    if spark is not None and not spark.in_one_jvm:
        return "spark", f"the master is {spark.master}"
    if not is_local(table_uri(lake)):
        return "local", "this process reaches the lake"
    return "local", "the lake is in the file system of this machine"
