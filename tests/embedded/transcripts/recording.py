"""The transcripts of Apache Kafka with which the embedded broker is compared. To record them again:

    python -P -m tests.embedded.transcripts.recording 127.0.0.1:9092
    python -P -m tests.embedded.transcripts.recording 127.0.0.1:9092 group_of_one group_of_two
    python -P -m tests.embedded.transcripts.recording guarded
    python -P -m tests.embedded.transcripts.recording guarded certificates

The first and the second with a broker as `holdfast dev up` starts it; the second records only the scenarios
it names, and keeps the others. The third and the fourth start a broker that asks who comes.
"""

from __future__ import annotations

import gzip
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.embedded.transcripts.guarded import Guarded, GuardedKafka, GuardedTalk
from tests.embedded.transcripts.guarded_rights import SCENARIOS as GUARDED_SCENARIOS
from tests.embedded.transcripts.scenarios import SCENARIOS, log_scenarios
from tests.embedded.transcripts.talk import Talk, TooLateError
from tests.support.patience import DEADLINE_S
from tests.support.places import TESTDATA

RECORDED = TESTDATA / "kafka_transcripts.txt.gz"
LOGS = TESTDATA / "kafka_log_transcripts.txt.gz"
"""Those of `log_scenarios`."""
GUARDED = TESTDATA / "kafka_guarded_transcripts.txt.gz"
HEAD = "== "


def told(endpoint: str, name: str) -> list[str]:
    """Return the transcript of one scenario with the broker at *endpoint*. A scenario that was too late
    proves nothing, and is repeated.
    """
    until_s = time.monotonic() + DEADLINE_S
    while True:
        talk = Talk(endpoint)
        try:
            SCENARIOS[name](talk)
            return talk.lines
        except TooLateError:
            if time.monotonic() > until_s:
                raise
        finally:
            talk.close()


def told_guarded(guarded: Guarded, name: str) -> list[str]:
    """Return the transcript of one of the guarded scenarios."""
    talk = GuardedTalk(guarded)
    try:
        GUARDED_SCENARIOS[name](talk)
    finally:
        talk.close()
    return talk.lines


def recorded(*paths: Path) -> dict[str, list[str]]:
    """Return Apache Kafka's answers by scenario: those in *paths*, or of all scenarios for a broker without
    authentication.
    """
    found: dict[str, list[str]] = {}
    texts = (gzip.decompress(path.read_bytes()).decode() for path in paths or (RECORDED, LOGS))
    for line in (line for text in texts for line in text.splitlines()):
        if line.startswith(HEAD):
            lines = found[line.removeprefix(HEAD)] = []
        else:
            lines.append(line)
    return found


def record(path: Path, names: Iterable[str], tell: Callable[[str], list[str]]) -> None:
    """Write the lines of *tell* for each of *names*."""
    lines = [line for name in names for line in (HEAD + name, *tell(name))]
    path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode(), mtime=0))


def main(endpoint: str, *names: str) -> None:
    paths = (GUARDED,) if endpoint == "guarded" else ()
    kept = {name: lines for name, lines in recorded(*paths).items() if name not in names} if names else {}
    if endpoint != "guarded":
        logs = {name for name, body in SCENARIOS.items() if body.__module__ == log_scenarios.__name__}

        def tell(name: str) -> list[str]:
            return kept[name] if name in kept else told(endpoint, name)

        record(LOGS, sorted(logs), tell)
        return record(RECORDED, [name for name in SCENARIOS if name not in logs], tell)
    with TemporaryDirectory() as folder, GuardedKafka(Path(folder)) as guarded:

        def tell_guarded(name: str) -> list[str]:
            return kept[name] if name in kept else told_guarded(guarded, name)

        record(GUARDED, GUARDED_SCENARIOS, tell_guarded)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
