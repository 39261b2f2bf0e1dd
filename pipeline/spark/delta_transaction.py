"""One commit to a Delta table through Delta's own transactions, in which the commit's metadata can follow
from the written data: Spark's writer wants them before.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.clock import system_clock
from holdfast.errors import SparkError
from holdfast.pipeline.spark.errors import causes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation, SparkSession

OBSERVED_DEADLINE_S = 60.0
"""The result of an observation comes a moment after its job ended, from another thread of the JVM."""
_RACES = ("ConcurrentTransactionException", "MetadataChangedException")
"""Delta's exceptions where another commit of the same name was made, or one that changed the table's
properties or columns.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenRows:
    """The rows of each partition that were written, the observation of them, and the bytes that they take as
    stored.
    """

    rows: Mapping[int, int]
    observed: Mapping[int, int]
    stored_bytes: int


class DeltaTransaction:
    """A transaction on the newest version of the table at *path*: writes files, then commits them once."""

    def __init__(self, session: SparkSession, path: str) -> None:
        jvm: Any = session._jvm
        self._jvm, log = jvm, jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session._jsparkSession, path)
        self._transaction = log.startTransaction()
        self._actions: Any = None

    @property
    def read_version(self) -> int:
        return int(self._transaction.readVersion())

    def has_made(self, name: str) -> bool:
        """Return whether a commit was made under *name*. From now on, one that is made in between makes this
        one fail.
        """
        return int(self._transaction.txnVersion(name)) >= 1

    def write(self, rows: DataFrame, partitions: Sequence[int], digest: str) -> WrittenRows:
        """Write the files of *rows*, and observe the XOR of the expression *digest* over those of each
        partition.
        """
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        observation = Observation()
        each = [F.expr(f"bit_xor(IF(partition = {p}, {digest}, 0L))").alias(str(p)) for p in partitions]
        observed = rows.observe(observation, *each) if each else rows
        self._actions = self._transaction.writeFiles(observed._jdf)
        counts, stored = self._files()
        found = _observed(observation) if counts else {}
        return WrittenRows(
            rows=counts, observed={p: found[p] % (1 << 64) for p in counts}, stored_bytes=stored
        )

    def _files(self) -> tuple[Mapping[int, int], int]:
        counts, stored = Counter[int](), 0
        for number in range(self._actions.size()):
            add = json.loads(self._actions.apply(number).json())["add"]
            stored += add["size"]
            counts[int(add["partitionValues"]["partition"])] += json.loads(add["stats"])["numRecords"]
        return counts, stored

    def commit(self, told: str, name: str, partitioned_by: Sequence[str]) -> bool:
        """Commit the written rows, with *told* as the user's metadata, as the only commit of that *name*;
        return whether it was made: it is not where another of that name came first, or one that changed the
        table itself.
        """
        jvm, option = self._jvm, self._jvm.scala.Option
        seq = jvm.PythonUtils.toSeq
        made = jvm.org.apache.spark.sql.delta.actions.SetTransaction(
            name, 1, option.apply(jvm.java.lang.Long.valueOf(system_clock.now_ms()))
        )
        write = getattr(jvm.org.apache.spark.sql.delta, "DeltaOperations$Write")(
            jvm.org.apache.spark.sql.SaveMode.Append,
            option.apply(seq(list(partitioned_by))),
            option.empty(),
            option.apply(told),
        )
        try:
            self._transaction.commit(self._actions.appended(made), write)
        except Exception as error:
            if any(kind.rpartition(".")[2] in _RACES for kind, _ in causes(error)):
                return False
            raise
        return True


def _observed(observation: Observation) -> dict[int, int]:
    until_s = system_clock.monotonic_s() + OBSERVED_DEADLINE_S
    while True:
        found = observation._jo.getOrEmpty()  # type: ignore[union-attr]
        if not found.isEmpty():
            pairs = found.iterator()
            told = dict[int, int]()
            while pairs.hasNext():
                pair = pairs.next()
                told[int(pair._1())] = int(pair._2() or 0)
            return told
        if system_clock.monotonic_s() > until_s:
            raise SparkError(
                f"Spark did not tell what its job had observed within {OBSERVED_DEADLINE_S:.0f} s; nothing"
                " was landed by it, so land again"
            )
        time.sleep(0.01)
