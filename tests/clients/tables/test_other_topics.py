"""An offset says how far only together with the id of its topic: queries bear it, and workers compare it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import aiohttp
import msgspec
import pytest
from yarl import URL

from holdfast.agents.web import global_routes, server
from holdfast.clients.tables.answers import Answer, AtLeast, ReachedOffsets
from holdfast.clients.tables.client import TableClient
from holdfast.config import Settings
from holdfast.core.engine.query_wire import (
    TOPIC_IDS,
    GlobalRowsReply,
    RowsReply,
    decode_global_rows_reply,
    decode_rows_reply,
)
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.errors import OtherTopicError, QueryError
from tests.clients.tables.tabling import TOTALS, Total, client, one_worker, scenario
from tests.clients.tables.test_globals import ORDERS, RATES, a_worker, with_rates
from tests.clients.tables.test_globals import client as client_of_rates
from tests.support.patience import DEADLINE_S

OLD, NEW = "old-topic_id==", "m+WK/F7-X_BftA"


def worker_of(topic_id: str = NEW, partitions: int = 1) -> MemoryWorker:
    """Return a worker of `totals`, folded up to offset 7 of partition 0 of the topic with this id."""
    worker = one_worker(partitions)
    worker.put(TOTALS, 0, "ada", Total(1), offset=7)
    for replica in worker.replicas.values():
        replica.topic_ids = {"orders": topic_id} if topic_id else {}
    return worker


@scenario
async def test_an_answer_says_how_far_and_of_which_topic() -> None:
    async with worker_of(partitions=3) as worker, client(worker) as tables:
        worker.put(TOTALS, 2, "bob", Total(2), offset=40)
        found = await tables.get(TOTALS, "ada", partition=0)
        assert found.reached == ReachedOffsets({0: 7}, {"orders": NEW})
        assert (await tables.get(TOTALS, "ada", at_least=found.reached)).value == Total(1)
        for key in ("bob", "nobody"):
            everywhere = await tables.get(TOTALS, key)
            assert everywhere.reached == ReachedOffsets({0: 7, 2: 40}, {"orders": NEW}), (
                "nothing is in partition 1"
            )
            again = [each async for each in tables.scan(TOTALS, at_least=everywhere.reached)]
            assert [each.reached.offsets for each in again] == [{0: 7}, {2: 40}]
        assert (
            msgspec.json.decode(msgspec.json.encode(everywhere.reached), type=ReachedOffsets)
            == everywhere.reached
        )


@scenario
async def test_an_offset_of_another_topic_is_refused_at_once() -> None:
    async with worker_of() as worker, client(worker) as tables:
        for offset in (3, 7, 1_000):
            for asked in (
                tables.get(TOTALS, "ada", at_least=ReachedOffsets({0: offset}, {"orders": OLD})),
                anext(tables.scan(TOTALS, at_least=ReachedOffsets({0: offset}, {"orders": OLD}))),
            ):
                with pytest.raises(
                    OtherTopicError,
                    match=f"id {re.escape(OLD)}.*id {re.escape(NEW)}.*made again.*ask without it",
                ):
                    await asked
        assert not worker.replica(TOTALS, 0).waited_for.is_set(), "no query waited"


@scenario
async def test_a_topic_that_is_made_again_while_a_query_waits_ends_the_wait() -> None:
    async with worker_of(OLD) as worker, client(worker) as tables:
        replica = worker.replica(TOTALS, 0)
        waiting = asyncio.ensure_future(
            tables.get(TOTALS, "ada", at_least=ReachedOffsets({0: 9}, {"orders": OLD}))
        )
        await replica.waited_for.wait()
        replica.topic_ids = {"orders": NEW}
        await replica.advance(9)
        with pytest.raises(OtherTopicError):
            await waiting


@scenario
async def test_a_copy_of_a_global_compares_too() -> None:
    async with with_rates(a_worker()) as worker, client_of_rates(worker) as tables:
        worker.globals["rates"].topic_ids = {"rates": NEW}
        found = await tables.get(RATES, "usd")
        assert found.reached == ReachedOffsets({0: 20, 1: 30}, {"rates": NEW})
        assert (await tables.get(RATES, "usd", at_least=found.reached)).value == 0.9
        with pytest.raises(OtherTopicError, match="global table rates"):
            await tables.get(RATES, "usd", at_least=ReachedOffsets({0: 20}, {"rates": OLD}))


@pytest.mark.parametrize("ids", ["orders", "strange:x", ":x", f"orders:{NEW},strange:x"])
@scenario
async def test_ids_of_what_the_table_is_not_folded_from_are_refused(ids: str) -> None:
    async with worker_of() as worker, aiohttp.ClientSession() as session:
        url = f"{worker.url}/tables/totals/0/rows/ada?at-offset=7"
        async with session.get(url, headers={TOPIC_IDS: ids}) as response:
            assert response.status == 400
            assert "its sources: orders" in await response.text()
        async with session.get(url, headers={TOPIC_IDS: f"orders:{OLD}"}) as response:
            assert (response.status, (await response.json())["error"]) == (409, "other_topic")
        async with session.get(url, headers={TOPIC_IDS: f"orders:{NEW}"}) as response:
            assert (await response.json())["topic_ids"] == {"orders": NEW}


@pytest.mark.parametrize("packed", [False, True])
@scenario
async def test_an_id_that_is_not_utf_8_is_refused_too(packed: bool) -> None:
    accepted = "application/msgpack" if packed else "application/json"
    async with worker_of() as worker:
        url = URL(worker.url)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(
            f"GET /tables/totals/0/rows/ada?at-offset=7 HTTP/1.1\r\nHost: {url.authority}\r\n"
            f"Accept: {accepted}\r\nConnection: close\r\n{TOPIC_IDS}: orders:".encode()
            + b"\xff\xfe\r\n\r\n"
        )
        answer = await asyncio.wait_for(reader.read(), DEADLINE_S)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 409"), answer
        assert b"other_topic" in answer


@pytest.mark.parametrize("ids", [{"orders": "a\r\nX: y"}, {"orders": ""}, {7: "a"}, {"orders": None}, "x"])
@scenario
async def test_ids_that_cannot_be_are_refused_before_they_are_sent(ids: Any) -> None:
    async with worker_of() as worker, client(worker) as tables:
        with pytest.raises(QueryError, match=r"^at_least is .*write"):
            await tables.get(TOTALS, "ada", at_least=ReachedOffsets({0: 7}, ids))


# -- releases that do not know of ids


@pytest.mark.parametrize("at_least", [(0, 7), {0: 7}, None])
@scenario
async def test_a_query_without_ids_is_answered_as_before(at_least: AtLeast | None) -> None:
    async with worker_of() as worker, client(worker) as tables:
        assert (await tables.get(TOTALS, "ada", at_least=at_least)).value == Total(1)


class _EarlierReply(msgspec.Struct, frozen=True, kw_only=True):
    """`RowsReply` of the releases before ids."""

    table: str
    version: int
    partition: int
    role: str
    as_of_offset: int
    stream_ms: int
    as_of: dict[str, int] = {}
    partial: dict[str, int] = {}
    values: list[bytes | None]


class _EarlierGlobalReply(msgspec.Struct, frozen=True, kw_only=True):
    """`GlobalRowsReply` of those releases."""

    table: str
    position: list[int]
    stream_ms: int
    values: list[bytes | None]


def test_earlier_clients_read_replies_with_ids_and_later_ones_those_without() -> None:
    about = {
        "table": "totals",
        "version": 1,
        "partition": 0,
        "role": "active",
        "as_of_offset": 7,
        "stream_ms": 1,
    }
    reply = RowsReply(**about, topic_ids={"orders": NEW}, values=[b"x"])  # type: ignore[arg-type]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(reply), type=_EarlierReply).values == [b"x"]
    earlier = _EarlierReply(**about, values=[b"x"])  # type: ignore[arg-type]
    assert decode_rows_reply(msgspec.msgpack.encode(earlier)).topic_ids == {}
    copy = GlobalRowsReply(table="rates", position=[3], stream_ms=1, topic_ids={"rates": NEW}, values=[b"x"])
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(copy), type=_EarlierGlobalReply).values == [b"x"]
    older = _EarlierGlobalReply(table="rates", position=[3], stream_ms=1, values=[b"x"])
    assert decode_global_rows_reply(msgspec.msgpack.encode(older)).topic_ids == {}


@contextmanager
def earlier_release() -> Iterator[None]:
    """Have workers not look at ids, as those of earlier releases."""
    with patch.object(server, "require_topics"), patch.object(global_routes, "require_topics"):
        yield


@scenario
async def test_a_worker_that_does_not_know_of_ids_is_asked_as_before() -> None:
    async def of_rates(worker: MemoryWorker, reached: ReachedOffsets) -> Answer[Any]:
        async with TableClient(Settings(app="shop"), [ORDERS], directory=worker.directory()) as tables:
            return await tables.get(RATES, "usd", at_least=reached)

    with earlier_release():
        async with worker_of("") as worker, client(worker) as tables:
            found = await tables.get(TOTALS, "ada", at_least=ReachedOffsets({0: 7}, {"orders": OLD}))
            assert (found.value, found.reached) == (Total(1), ReachedOffsets({0: 7}))
        async with with_rates(a_worker()) as worker:
            found = await of_rates(worker, ReachedOffsets({0: 20}, {"rates": OLD}))
            assert repr(found.value) == "0.9"
            assert found.reached.topic_ids == {}
