"""Checks for any schedule."""

from __future__ import annotations

from random import Random

from holdfast.core.engine.choices import decode_choice
from holdfast.core.engine.positions import start_of
from holdfast.core.engine.state.codec import (
    ROW,
    TIMER_KINDS,
    decode_due,
    event_key,
    row_key,
    tick_key,
    wake_key,
)
from holdfast.errors import ChoicesError
from tests.choices.world import (
    Journal,
    Log,
    Worker,
    logs_of,
    naive,
    processor_of,
    recorded_of,
    replay,
    written_log,
)


class DiffersError(AssertionError):
    """A live state and its replay are not equal."""


def check_replay(rng: Random, logs: list[Log], live: Journal, version: int = 1) -> None:
    """Fold again up to the live marker, twice: with the folder and without it."""
    recorded, logs = recorded_of(live), logs_of(live, logs)
    marker = live.position
    again = replay(rng, logs, recorded, version, marker)
    if again.told() != live.told():
        raise DiffersError("the replay differs from the live state")
    plain = naive(logs, recorded, marker or start_of(processor_of(len(logs))))
    kept = {row_key(key): b"\x01" for key in plain.rows.rows}
    stored = {key: value for key, value in live.store.items() if key[:1] in (ROW, *TIMER_KINDS)}
    timers = {wake_key(key): at_ms for key, at_ms in plain.rows.timers["append"].items()}
    timers |= {tick_key(key): at_ms for key, at_ms in plain.rows.timers["tick"].items()}
    timers |= {event_key(key): at_ms for key, at_ms in plain.rows.timers["event"].items()}
    if (
        plain.emits != live.emits
        or plain.refused != [(each.topic, each.offset, each.stage) for each in live.refused]
        or set(kept) != {key for key in stored if key[:1] == ROW}
        or timers != {key: decode_due(value) for key, value in stored.items() if key[:1] != ROW}
    ):
        raise DiffersError("the live state differs from the model's")


def check_schedule(seed: int) -> tuple[int, int]:
    """Run the schedule of *seed* and compare it with its replays; return how many barriers and ticks were
    recorded. In some, the first workers are of an earlier release, which merges by append time.
    """
    rng = Random(seed)
    logs = [written_log(rng) for _ in range(rng.choice((1, 2, 2, 3, 3, 8)))]
    live = Journal()
    worker = Worker(rng, logs, live)
    if seed % 3 == 0:
        worker.is_old = True
        worker.restart()
    worker.run(rng.randrange(12))
    check_replay(rng, logs, live)
    if worker.is_old:
        assert not any(decode_choice(each).by_event for each in live.choices)
        worker.is_old = False
        worker.restart()
    if rng.random() < 0.3:  # a new version: obeys the recorded choices, then decides
        obeyed = list(live.choices)
        live = Journal(choices=live.choices)
        Worker(rng, logs, live, version=2).run()
        assert live.choices[: len(obeyed)] == obeyed
        check_replay(rng, logs, live, version=2)
    else:
        worker.run()
        check_replay(rng, logs, live)
    ticks = sum(decode_choice(each).tick_ms is not None for each in live.choices)
    return len(live.choices) - ticks, ticks


def check_turns(seed: int) -> bool:
    """Run two versions in turns, as an upgrade that is taken back does, and compare both with their replays;
    return whether one was found to have folded past the other's decisions.
    """
    rng = Random(seed)
    logs = [written_log(rng) for _ in range(rng.choice((2, 3)))]
    choices: list[bytes] = []
    journals = {version: Journal(choices=choices) for version in (1, 2)}
    for turn in range(rng.choice((2, 3, 4))):
        version = 1 + turn % 2
        try:
            Worker(rng, logs, journals[version], version).run(rng.randrange(12))
        except ChoicesError as error:
            if "Another version of the processor made it" not in str(error):
                raise
            return True
        finally:
            check_replay(rng, logs, journals[version], version)
    return False
