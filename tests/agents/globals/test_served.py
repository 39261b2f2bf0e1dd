"""The reports of a worker on its copies: whether they may be read, how far they are, and what they refused.
No broker is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.agents.globals.copies import GlobalCopies, _Refusals
from holdfast.agents.globals.served import ServedGlobal
from holdfast.agents.partitions.readiness import Readiness
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.merge.global_copies import GlobalCopy
from holdfast.core.engine.state.codec import row_key
from holdfast.errors import StoreError
from tests.agents.globals.test_intake import PRICED, RATES
from tests.support.patience import DEADLINE_S, SCENARIO_S


def copies(loop: asyncio.AbstractEventLoop | None = None) -> GlobalCopies:
    """Return the copies of a worker that has read nothing of three partitions, which end at 5, 7 and 0."""

    def thread(call: Callable[..., Any], *args: Any) -> Any:
        assert loop is not None
        return loop.run_in_executor(None, call, *args)

    host: Any = SimpleNamespace(processors={"priced": PRICED}, stalled={}, thread=thread)
    made = GlobalCopies(host)
    made.counts = {"rates": 3}
    made.copies["rates"] = GlobalCopy(RATES, None, _Refusals(RATES, made.failures["rates"]))
    made._positions = {("rates", 0): 0, ("rates", 1): 0, ("rates", 2): 0}
    return made


def rate(made: GlobalCopies, text: bytes, offset: int, partition: int = 0) -> None:
    made.copies["rates"].apply(partition, Batch([offset], [1_000 + offset], ([text],)))
    made._positions["rates", partition] = offset + 1


def test_a_copy_may_be_read_once_its_topic_was_read_to_where_it_ended_at_the_start() -> None:
    made = copies()
    served = ServedGlobal(RATES, made)
    assert served.unready() == "global table rates is not caught up: the end of rates is not known yet"
    made._goals = {("rates", 0): 5, ("rates", 1): 7, ("rates", 2): 0}
    assert (
        served.unready()
        == "global table rates is not caught up: partition 0 was read up to 0 of 5, partition 1 was read up"
        " to 0 of 7 of rates"
    )
    made._positions["rates", 0] = 5
    assert made.behind() == [
        "global table rates is not caught up: partition 1 was read up to 0 of 7 of rates"
    ]
    made._positions["rates", 1] = 9
    assert (served.unready(), made.behind()) == (None, [])
    made.whole = True
    made._positions["rates", 3] = 0  # a partition that was added since
    assert served.unready() is None
    made.closed = True
    assert served.unready() == "the worker is stopping"


def test_many_partitions_that_lag_are_counted() -> None:
    made = copies()
    made._positions = {("rates", at): 0 for at in range(9)}
    made._goals = dict.fromkeys(made._positions, 1)
    assert "partition 2 was read up to 0 of 1 and 6 more of rates" in made.behind()[0]


def test_a_worker_is_unready_while_a_global_is_not_caught_up() -> None:
    membership: Any = SimpleNamespace(owns=lambda: True)
    feed: Any = SimpleNamespace(broker_down=False, standing={})
    readiness = Readiness(membership, feed, {})
    why = "global table rates is not caught up"
    assert readiness.unready(folding=True, lost=(), standby_failure=None, behind=[why]) == why
    readiness.stalled["priced", 0] = "it waits"
    assert readiness.unready(folding=True, lost=(), standby_failure=None, behind=[why]) == f"{why}; it waits"
    readiness.stalled.clear()
    assert readiness.unready(folding=True, lost=(), standby_failure=None) is None


def test_position_lag_and_failures_are_reported_by_partition() -> None:
    made = copies()
    made._feed = SimpleNamespace(ends=lambda: {("rates", 0): 12, ("rates", 1): 3, ("other", 0): 9})  # type: ignore[assignment]
    served = ServedGlobal(RATES, made)
    rate(made, b"a", 9)
    rate(made, b"\xff", 10)  # no text
    assert served.applied == {0: 10, 1: -1, 2: -1}
    assert served.lags == {0: 1, 1: 3}
    assert served.failures == {0: 1}
    assert served.approximate_rows() == 0  # it has no store of its own here


def test_offsets_are_waited_for_and_a_read_sees_one_position() -> None:
    async def run() -> None:
        made = copies(asyncio.get_running_loop())
        made.whole = True
        served = ServedGlobal(RATES, made)
        rate(made, b"a", 4)
        assert await served.reached({0: 4}, 0)
        assert not await served.reached({0: 5}, 0.05)
        waiting = asyncio.ensure_future(served.reached({0: 5, 1: 0}, DEADLINE_S))
        for offset, partition in ((5, 0), (0, 1)):
            await asyncio.sleep(0)
            assert not waiting.done()
            rate(made, b"b", offset, partition)
            made._notify()
        assert await waiting
        seen = await served.read(lambda view: (view.vector, view.stream_ms, view.scan(b"\x02")))
        rate(made, b"c", 6)
        assert seen[:2] == ((5, 0), 1_005)

        def closed(view: Any) -> None:
            made.closed = True
            raise ValueError("the store is closed")

        with pytest.raises(ValueError, match="bad key"):
            await served.read(lambda view: (_ for _ in ()).throw(ValueError("bad key")))
        with pytest.raises(StoreError, match="global table rates was closed"):
            await served.read(closed)

    asyncio.run(asyncio.wait_for(run(), SCENARIO_S))


def test_a_view_is_scanned_from_a_key_on_as_it_was() -> None:
    made = copies()
    copy = made.copies["rates"]
    rate(made, b"a", 0)
    before = copy.view()
    rate(made, b"b", 1)
    start = row_key("rate")
    assert [*before.scan(b"\x02", start)] == [*before.scan(b"\x02")]
    assert len([*before.scan(b"\x02", start)]) == 1
    assert [*before.scan(b"\x02", start + b"\x00")] == []
    assert [*copy.view().scan(b"\x02", start)] != [*before.scan(b"\x02", start)]
