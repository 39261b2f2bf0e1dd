"""The program that forks the Python workers of Spark on one machine, with what a fold and a landing need
imported once.

Spark's own daemon forks workers that have imported neither: each compiles this package from the zip that it
was sent, for most of a second of a core. There are as many as cores, and Spark ends those that are idle for a
minute. Spark starts this module by its name (`spark.python.daemon.module`).
"""

from __future__ import annotations

import gc

from holdfast.pipeline import replay  # noqa: F401
from holdfast.pipeline.histories import partition_fold  # noqa: F401
from holdfast.pipeline.landing import local_table  # noqa: F401


def main() -> None:
    """Fork workers until Spark closes the input."""
    from pyspark import daemon

    # A worker looks for garbage after each task: never again in what all of them share.
    gc.freeze()
    daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
