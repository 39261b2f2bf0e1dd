"""Backlog: 1,000,000 heartbeats of 10,000 claims over 4 partitions, exactly once, beside Kafka Streams, a
plain loop and stock Faust.

python -P -m bench.backlog [--rounds 3] [--records 1000000] [--claims 10000] [--only
holdfast-claims,loop-20000]

`many-claims` is the same worker on 4,000,000 heartbeats of 200,000 claims.
"""

from __future__ import annotations

import argparse

from bench.run import Bench, Part, bench, interleave, load_average, ratio
from bench.traffic import load

MANY, MANY_RECORDS, MANY_CLAIMS = "many-claims", 4_000_000, 200_000


def many_claims(on: Bench) -> Part:
    """Fill a second topic on the same broker, and return the worker that folds it."""
    many = Bench(on.bootstrap, "heartbeats-many", MANY_RECORDS, on.folder)
    load(many.bootstrap, many.topic, MANY_RECORDS, MANY_CLAIMS)
    return many.holdfast("claims")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--claims", type=int, default=10_000)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    with bench(given.records, given.claims) as on:
        parts = {
            "holdfast-claims": on.holdfast("claims"),
            "holdfast-count": on.holdfast("count"),
            "loop-20000": on.loop(20_000),
            "streams-eos": on.streams(),
            "stock-faust": on.stock_faust(30_000),
        }
        chosen = {
            name: part for name, part in parts.items() if not given.only or name in given.only.split(",")
        }
        if not given.only or MANY in given.only.split(","):
            chosen[MANY] = many_claims(on)
        print(f"backlog of {given.records:,} records, {given.claims:,} claims, {load_average()}", flush=True)
        results = interleave(chosen, given.rounds)
        print(load_average())
        for a, b, wanted in (
            ("holdfast-claims", "streams-eos", 1.8),
            ("holdfast-claims", "loop-20000", 0.8),
            ("holdfast-count", "loop-20000", 1.2),
            ("holdfast-claims", "stock-faust", 60.0),
            (MANY, "holdfast-claims", 0.6),
            (MANY, "loop-20000", 0.48),
        ):
            if a in chosen and b in chosen:
                ratio(results, a, b, wanted)


if __name__ == "__main__":
    main()
