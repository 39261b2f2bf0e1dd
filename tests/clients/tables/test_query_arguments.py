"""Impossible arguments of a question: each raises at once, where it would else pass for a worker that does
not answer.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from holdfast.clients.tables.blocking import BlockingTableClient
from holdfast.clients.tables.directory import FixedDirectory
from holdfast.config import Settings
from holdfast.core.engine.query_wire import Staleness
from holdfast.errors import QueryError
from tests.clients.tables.tabling import TOTALS, Total, client, one_worker, scenario

WRONG: list[tuple[str, Any]] = [
    *(("timeout_s", each) for each in ("1", None, float("nan"), True, timedelta(seconds=1))),
    *(("partition", each) for each in ("0", -1, 0.5, 2**31, False)),
    *(("at_least", each) for each in (5, "x", (0,), (0, "7"), ("0", 7), {"orders": 7}, {0: {7: 7}})),
    *(("max_staleness", each) for each in ("1m", 0.5, True)),
]
OF_PAGES: list[tuple[str, Any]] = [("page_rows", each) for each in (0, -1, "2", 1.5, None)]
OF_SCANS: list[tuple[str, Any]] = [("prefix", each) for each in (None, b"a", 7)]


async def _drain(rows: Any) -> None:
    async for _ in rows:
        pass


@pytest.mark.parametrize(("name", "given"), WRONG, ids=repr)
@scenario
async def test_impossible_terms_are_refused(name: str, given: Any) -> None:
    wrong = {name: given}
    async with client(directory=FixedDirectory()) as tables:
        for asked in (tables.get(TOTALS, "ada", **wrong), _drain(tables.scan(TOTALS, **wrong))):
            with pytest.raises(QueryError, match=f"^{name} is .*write"):
                await asked


@pytest.mark.parametrize(("name", "given"), OF_PAGES + OF_SCANS, ids=repr)
@scenario
async def test_an_impossible_scan_is_refused(name: str, given: Any) -> None:
    async with client(directory=FixedDirectory()) as tables:
        with pytest.raises(QueryError, match=f"^{name} is .*write"):
            await _drain(tables.scan(TOTALS, **{name: given}))


@pytest.mark.parametrize(("name", "given"), [*WRONG, *OF_PAGES], ids=repr)
def test_the_client_that_waits_refuses_the_same(name: str, given: Any) -> None:
    known = FixedDirectory()
    with BlockingTableClient(Settings(app="shop"), [TOTALS], directory=known) as tables:
        asks: list[Callable[..., Any]] = [lambda **wrong: list(tables.scan(TOTALS, **wrong))]
        if name != "page_rows":
            asks.append(lambda **wrong: tables.get(TOTALS, "ada", **wrong))
        for ask in asks:
            with pytest.raises(QueryError, match=f"^{name} is .*write"):
                ask(**{name: given})


@scenario
async def test_what_can_be_is_taken() -> None:
    async with one_worker() as worker, client(worker) as tables:
        worker.put(TOTALS, 0, "ada", Total(1), offset=7)
        for terms in (
            {"timeout_s": np.float64(5), "partition": np.int64(0)},
            {"at_least": (0, 7)},
            {"at_least": {0: 7}},
            {"max_staleness": timedelta(seconds=1)},
            {"max_staleness": Staleness(offsets=1)},
            {"max_staleness": 3},
        ):
            assert (await tables.get(TOTALS, "ada", **terms)).value == Total(1)
        assert len([each async for each in tables.scan(TOTALS, page_rows=1)]) == 1


@pytest.mark.parametrize("keys", [None, 7, (each for each in ["ada"])], ids=["None", "7", "generator"])
@scenario
async def test_keys_that_are_no_collection_are_refused(keys: Any) -> None:
    async with one_worker() as worker, client(worker) as tables:
        with pytest.raises(QueryError, match="keys are a collection of strings"):
            await tables.get_many(TOTALS, keys)


@pytest.mark.parametrize("partition", [None, 0])
@pytest.mark.parametrize("keys", [{"ada"}, {"ada": 1}.keys(), ("ada",)], ids=["set", "view", "tuple"])
@scenario
async def test_any_collection_of_keys_is_asked_for(keys: Any, partition: int | None) -> None:
    async with one_worker() as worker, client(worker) as tables:
        worker.put(TOTALS, 0, "ada", Total(1), offset=7)
        found = await tables.get_many(TOTALS, keys, partition=partition)
        assert {key: each.value for key, each in found.items()} == {"ada": Total(1)}
