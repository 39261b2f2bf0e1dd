"""A processor that reads a global table, on real workers: killed, taken over, and folded again to the same
bytes.
"""

from __future__ import annotations

import itertools
import json
from itertools import pairwise

import pytest

from holdfast import BlockingTableClient
from holdfast.core.engine.choices import Choice, decode_choice
from holdfast.core.engine.state.global_rows import covers
from tests.chaos.conftest import MakeJoin
from tests.support.harness import wait_for
from tests.support.joining_app import JoinApplication, JoinOutcome
from tests.support.patience import DEADLINE_S
from tests.support.proof import read_topic

MORE_THAN = 5
"""More positions than this of the global each partition is to record."""


def positions(choices: list[Choice]) -> list[tuple[int, ...]]:
    return [each.globals[0] for each in choices if each.globals]


def told(outcomes: dict[int, JoinOutcome]) -> dict[int, list[tuple[int, ...]]]:
    """Return the positions that each partition has recorded; AssertionError if they do not increase."""
    found = {number: positions(each.choices) for number, each in outcomes.items()}
    for number, vectors in found.items():
        assert all(covers(after, before) and after != before for before, after in pairwise(vectors)), number
        marker = outcomes[number].marker
        assert marker.globals == (vectors[-1],)
    return found


def fewest(app: JoinApplication) -> int:
    """Return how many positions that partition has recorded that has the fewest."""
    logs = read_topic(app.broker, app.joined.choices(app.name)).values()
    return min(len(positions([decode_choice(each.value()) for each in log])) for log in logs)


def answered(app: JoinApplication) -> dict[str, int]:
    """Return the rows of the global as a worker's copy has them, once it holds the whole log."""
    written = {
        number: messages[-1].offset() or 0 for number, messages in read_topic(app.broker, app.rates).items()
    }
    with BlockingTableClient(app.settings, [app.joined]) as tables:
        rows = [*tables.scan("rates", at_least=written, timeout_s=DEADLINE_S, page_rows=7)]
        for each in rows:
            assert all(each.positions[number] >= offset for number, offset in written.items())
            assert tables.get("rates", each.key, timeout_s=DEADLINE_S).value == each.value
    return {each.key: each.value for each in rows}


def folded(app: JoinApplication) -> dict[str, int]:
    """Return the rows of the global by the test's own fold of its log."""
    (table,), copy = app.joined.reads, dict[str, int]()
    for messages in read_topic(app.broker, app.rates).values():
        for message in messages:
            table.fold(copy, (message.value() or b"").decode(), 0)  # type: ignore[operator, arg-type]
    return copy


@pytest.mark.slow
def test_folds_see_a_global_as_recorded_past_kills_and_takeovers(join: MakeJoin) -> None:
    app = join(rates=True)
    app.write(200, seed=1)
    first = app.worker().start().wait_ready()
    app.write(600, seed=2, rest_s=0.1)
    first.kill()
    second = app.worker().start().wait_ready()
    app.write(600, seed=3, rest_s=0.1)
    seeds = itertools.count(100)
    while (
        fewest(app) <= MORE_THAN
    ):  # a busy machine folds in few transactions, each of which sees the global once
        app.write(100, seed=next(seeds))
        app.wait_folded()
    found = told(app.prove())
    assert answered(app) == folded(app)
    wait_for(
        "no lag", lambda: set(second.metric("holdfast_global_lag").values()) == {0.0}, DEADLINE_S, second.tail
    )
    assert second.metric("holdfast_global_serving") == {'table="rates"': 1.0}
    assert all(len(vectors) > MORE_THAN for vectors in found.values()), found

    # A new owner with an empty copy reaches the previous owner's position before it continues.
    second.kill()
    second.wipe()
    app.write(100, seed=4)
    first.start().wait_ready()
    after = told(app.prove())
    for number, vectors in found.items():
        assert after[number][: len(vectors)] == vectors
        assert len(after[number]) > len(vectors)
    stores = app.command("verify", "joined", "--store", "--output", "json")
    assert json.loads(stores.stdout)["equal"], stores.stderr


@pytest.mark.slow
def test_a_new_version_sees_the_global_as_the_old_one_did(join: MakeJoin) -> None:
    app = join(rates=True)
    worker = app.worker().start().wait_ready()
    app.write(500, seed=5, rest_s=0.1)
    before = app.prove()
    obeyed = told(before)
    worker.stop()

    app.raise_version(2)
    app.worker().start().wait_ready()
    app.wait_folded()
    again = app.prove()
    assert told(again) == obeyed
    assert {number: each.emits for number, each in again.items()} == {
        number: each.emits for number, each in before.items()
    }
    app.write(200, seed=6, rest_s=0.1)
    assert all(len(vectors) > len(obeyed[number]) for number, vectors in told(app.prove()).items())
