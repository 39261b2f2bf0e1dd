"""Runs schedules:

`make sim SEED=7 SCHEDULES=10000`. Each schedule has a seed of its own, SEED and those that follow.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from hashlib import blake2b

from tests.simulation.trace import Violation
from tests.simulation.world import Outcome, run_schedule

CHUNK = 50
TELL_S = 10.0
LIMIT_SHOWN = 5


def run_chunk(seeds: range) -> list[tuple[int, Outcome | str]]:
    """Return the result of each seed: an outcome, or the text of a violation."""
    out: list[tuple[int, Outcome | str]] = []
    for seed in seeds:
        try:
            out.append((seed, run_schedule(seed)))
        except Violation as violation:
            out.append((seed, str(violation)))
        except Exception as error:
            error.add_note(f"seed {seed}; again: make sim SEED={seed} SCHEDULES=1")
            raise
    return out


def run_all(seeds: range, jobs: int) -> Iterator[tuple[int, Outcome | str]]:
    chunks: Iterable[range] = (seeds[begin : begin + CHUNK] for begin in range(0, len(seeds), CHUNK))
    if jobs == 1:
        for chunk in chunks:
            yield from run_chunk(chunk)
        return
    with ProcessPoolExecutor(jobs) as pool:
        for each in pool.map(run_chunk, chunks):
            yield from each


def main() -> int:
    """Run the schedules of the command line; 1 when a rule was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument(
        "--seed", type=int, default=int(time.time()), help="the first seed (default: the time)"
    )
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    print(f"seed {asked.seed}, {asked.schedules} schedules", flush=True)
    began_s = told_s = time.monotonic()
    kinds: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    digest = blake2b(digest_size=16)
    broken = 0
    for number, (seed, outcome) in enumerate(
        run_all(range(asked.seed, asked.seed + asked.schedules), asked.jobs), 1
    ):
        digest.update(f"{seed} {outcome if isinstance(outcome, str) else outcome.digest}\n".encode())
        if isinstance(outcome, str):
            broken += 1
            if broken <= LIMIT_SHOWN:
                print(f"\n{outcome}\n", flush=True)
            else:
                print(f"seed {seed}: {outcome.partition(chr(10))[0]}", flush=True)
        else:
            kinds[outcome.kind.value] += 1
            for field in ("steps", "frames", "handed_out", "redelivered", "taken", "conflicts", "ended_s"):
                totals[field] += getattr(outcome, field)
        now_s = time.monotonic()
        if now_s - told_s > TELL_S:
            told_s = now_s
            print(f"{number} schedules, {number / (now_s - began_s):.0f}/s, {broken} violations", flush=True)
    took_s = time.monotonic() - began_s
    print(", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())))
    print(
        f"{totals['ended_s'] / 86_400:.1f} days of simulated time, {totals['steps']:,} steps,"
        f" {totals['frames']:,} frames, {totals['taken']:,} claims taken, {totals['handed_out']:,} messages"
        f" handed out, {totals['redelivered']:,} of them again"
    )
    print(f"digest {digest.hexdigest()}: two runs of the same seeds with another one did not do the same")
    print(f"{asked.schedules} schedules in {took_s:.0f} s: {broken} violations (seed {asked.seed})")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
