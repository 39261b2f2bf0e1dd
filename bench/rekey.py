"""A stateless re-key of 1,000,000 records of 4 partitions, exactly once, against a plain transactional
consume-produce loop and Kafka Streams.

python -P -m bench.rekey [--rounds 3] [--records 1000000] [--batch 20000]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.run import Bench, Part, bench, interleave, load_average, ratio

CLAIMS = 10_000


def loop(on: Bench, batch: int) -> Part:
    module = "bench.rivals.transactional_loop"
    return lambda name: ([sys.executable, "-P", "-m", module, on.bootstrap, on.topic, str(batch)], {})


def streams(on: Bench) -> Part:
    from bench.traffic import create

    plain = on.streams(work="rekey")

    def part(name: str) -> tuple[list[str], dict[str, str]]:
        create(on.bootstrap, f"{name}-out")
        Path(on.folder / name).mkdir()
        command, more = plain(name)
        return [*command, f"out={name}-out"], more

    return part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=20_000)
    given = parser.parse_args()
    with bench(given.records, CLAIMS) as on:
        parts = {
            "holdfast-rekey": on.holdfast("rekey"),
            "loop": loop(on, given.batch),
            "streams": streams(on),
        }
        print(f"{given.records:,} records, batches of {given.batch:,}, {load_average()}", flush=True)
        results = interleave(parts, given.rounds)
        print(load_average())
        ratio(results, "holdfast-rekey", "loop", 0.8)
        ratio(results, "holdfast-rekey", "streams", 1.0)


if __name__ == "__main__":
    main()
