"""The transcripts of Apache Kafka that the embedded broker is held against. To record them anew:

    python -P -m tests.embedded.transcripts 127.0.0.1:9092

with a broker as `holdfast dev up` starts it.
"""

from __future__ import annotations

import gzip
import sys

from tests.embedded.scenarios import SCENARIOS
from tests.embedded.talk import Talk
from tests.support.places import TESTDATA

RECORDED = TESTDATA / "kafka_transcripts.txt.gz"
HEAD = "== "


def told(endpoint: str, name: str) -> list[str]:
    """Return the transcript of one scenario with the broker at *endpoint*."""
    talk = Talk(endpoint)
    try:
        SCENARIOS[name](talk)
    finally:
        talk.close()
    return talk.lines


def recorded() -> dict[str, list[str]]:
    """Return what Apache Kafka answered, by scenario."""
    found: dict[str, list[str]] = {}
    for line in gzip.decompress(RECORDED.read_bytes()).decode().splitlines():
        if line.startswith(HEAD):
            lines = found[line.removeprefix(HEAD)] = []
        else:
            lines.append(line)
    return found


def main(endpoint: str) -> None:
    lines = [line for name in SCENARIOS for line in (HEAD + name, *told(endpoint, name))]
    RECORDED.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode(), mtime=0))


if __name__ == "__main__":
    main(sys.argv[1])
