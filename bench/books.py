"""Books: 1,000,000 stamped records of 10,000 producers over 4 partitions, beside as many heartbeats of
claims; exactly once.

python -P -m bench.books [--rounds 3] [--records 1000000] [--producers 10000]
"""

from __future__ import annotations

import argparse

from bench.run import Bench, bench, interleave, load_average, ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--producers", type=int, default=10_000)
    given = parser.parse_args()
    from bench.traffic import load_stamped

    with bench(given.records, given.producers) as on:
        stamped = Bench(on.bootstrap, f"stamped-{given.records}", given.records, on.folder)
        load_stamped(stamped.bootstrap, stamped.topic, given.records, given.producers)
        parts = {
            "claims": on.holdfast("claims"),
            "books": stamped.holdfast("books"),
            "clean": stamped.holdfast("clean"),
        }
        print(
            f"{given.records:,} records, {given.producers:,} claims or producers, {load_average()}",
            flush=True,
        )
        results = interleave(parts, given.rounds)
        print(load_average())
        ratio(results, "books", "claims", 0.8)
        # every record is written again: the rate of two logs, shown beside the rate of one
        ratio(results, "clean", "claims", 0.0)


if __name__ == "__main__":
    main()
