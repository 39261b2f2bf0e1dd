"""Small transactions that follow each other closely: begun at once, and after a rest, in turn, each on a
broker of its own.

    python -P -m bench.pace [--rounds 4] [--seconds 6]

Four producers, a partition each. Every 11.3 ms a portion of 18 records falls due; a producer that is late
takes all that is due. The first round finds brokers just started. It prints the time from due to done, how
many transactions took more than 20 ms, which is what one that is sent back takes at least, and what a
transaction costs the broker.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from bench.processes import cpu_s, quantiles
from bench.run import load_average
from bench.warm import Committer, on_every_partition
from holdfast.core.outbox.pacing import SENT_BACK_S, TransactionPacing
from holdfast.dev.broker.cluster import Cluster

EVERY_S, RECORDS = 0.0113, 18


class AtOnce(TransactionPacing):
    """No rest."""

    def rest_s(self, now_s: float, *, records: int) -> float:
        return 0.0


def measure(cluster: Cluster, name: str, make_pace: type[TransactionPacing], seconds: float) -> None:
    waited_s: list[float] = []
    took_s: list[float] = []
    brokers = [each.pid for each in cluster.status() if each.pid is not None]

    def work(committer: Committer, partition: int) -> None:
        pace = make_pace()
        due_s = time.perf_counter()
        until_s = due_s + seconds
        while due_s < until_s:
            time.sleep(max(0.0, due_s - time.perf_counter()))
            time.sleep(pace.rest_s(time.perf_counter(), records=RECORDS))
            began_s, due = time.perf_counter(), []
            while due_s <= began_s:
                due.append(due_s)
                due_s += EVERY_S
            took_s.append(committer.commit(RECORDS * len(due)))
            ended_s = time.perf_counter()
            pace.ended(began_s, ended_s, records=RECORDS * len(due))
            waited_s.extend(ended_s - each_s for each_s in due)

    used_s = cpu_s(*brokers)
    on_every_partition(cluster.bootstrap, work)
    cost_ms = (cpu_s(*brokers) - used_s) / len(took_s) * 1e3
    late = sum(each_s >= SENT_BACK_S for each_s in took_s) / len(took_s)
    print(
        f"  {name:8s} due to done {quantiles(waited_s)}; {late:.1%} over 20 ms, broker {cost_ms:.1f} ms of"
        " CPU each",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=6)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder,
        Cluster(Path(folder) / "at-once") as at_once,
        Cluster(Path(folder) / "rested") as rested,
    ):
        for _ in range(given.rounds):
            measure(at_once, "at once", AtOnce, given.seconds)
            measure(rested, "rested", TransactionPacing, given.seconds)
        print(f"  {load_average()}", flush=True)


if __name__ == "__main__":
    main()
