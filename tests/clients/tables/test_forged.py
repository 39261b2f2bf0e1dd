"""What a writer of the workers topic can do to clients: nothing but cost them a little time."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import msgspec
import pytest

from holdfast.clients.tables.directory import FixedDirectory, WorkersTopic, read_claims
from holdfast.clients.tables.web_tls import WorkerToken
from holdfast.config import Settings
from holdfast.core.engine.query_wire import WorkerClaims
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.errors import AccessError, ConfigError, QueryError
from tests.clients.tables.tabling import TOTALS, Total, client, one_worker, scenario, settings
from tests.support.places import TLS

TOKEN = "open-sesame"


class Listening:
    """Takes connections, keeps what it is sent, and answers *answer*."""

    def __init__(self, answer: bytes = b"") -> None:
        self.heard, self._answer = b"", answer
        self.connections = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._hear, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.heard += await reader.read(65_536)
        writer.write(self._answer)
        writer.close()


def forged(worker: MemoryWorker, url: str) -> WorkerClaims:
    return msgspec.structs.replace(worker.claims(generation=1_000_000_000), url=url)


@scenario
async def test_a_forged_claim_neither_gets_the_token_nor_hides_the_owner() -> None:
    async with (
        Listening() as thief,
        MemoryWorker(settings(web_token=TOKEN), [TOTALS], partitions=1) as worker,
    ):
        worker.put(TOTALS, 0, "ada", Total(3), offset=1)
        # The thief's address is one that the settings of the fleet do not allow.
        known = FixedDirectory([worker.claims(), forged(worker, thief.url.replace("127.0.0.1", "localhost"))])
        async with client(directory=known, web_token=TOKEN, web_token_networks="127.0.0.1") as tables:
            assert (await tables.get(TOTALS, "ada", partition=0)).value == Total(3)
        assert thief.connections == 0


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n",
        b"no http",
    ],
)
@scenario
async def test_a_claim_that_leads_nowhere_does_not_hide_the_owner(answer: bytes) -> None:
    async with Listening(answer) as other, one_worker() as worker:
        worker.put(TOTALS, 0, "ada", Total(3), offset=1)
        async with client(directory=FixedDirectory([worker.claims(), forged(worker, other.url)])) as tables:
            for _ in range(5):
                assert (await tables.get(TOTALS, "ada", partition=0)).value == Total(3)
        assert other.connections == 1, "who did not answer is asked last for a while"


@pytest.mark.parametrize("target", ["http://attacker.example:80/x", "ftp://127.0.0.1/x", "http://[::1", "//"])
@scenario
async def test_a_redirect_does_not_lead_the_token_away(target: str) -> None:
    answer = f"HTTP/1.1 421 Moved\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()
    async with Listening(answer) as other, one_worker() as worker:
        known = FixedDirectory([msgspec.structs.replace(worker.claims(), url=other.url)])
        async with client(directory=known, web_token=TOKEN) as tables:
            with pytest.raises(QueryError):
                await tables.get(TOTALS, "ada", partition=0, timeout_s=0.5)


@pytest.mark.parametrize(
    ("changes", "url", "goes"),
    [
        ({}, "http://127.0.0.1:1", True),
        ({}, "http://[::1]:1", True),
        ({}, "http://localhost:1", True),
        ({}, "https://attacker.example:1", True),
        ({}, "http://attacker.example:1", False),
        ({}, "http://localhost.attacker.example:1", False),
        ({}, "http://127.0.0.1.attacker.example:1", False),
        ({}, "http://10.0.0.1:1", False),
        ({"web_token_networks": "10.0.0.0/8, tables"}, "http://10.9.9.9:1", True),
        ({"web_token_networks": "10.0.0.0/8, tables"}, "http://TABLES:1", True),
        ({"web_token_networks": "10.0.0.0/8, tables"}, "http://127.0.0.1:1", False),
        (
            {"web_tls_cert": TLS / "client.pem", "web_tls_key": TLS / "client-key.pem"},
            "http://127.0.0.1:1",
            False,
        ),
    ],
)
def test_the_token_goes_over_tls_or_to_what_the_settings_name(
    changes: dict[str, Any], url: str, goes: bool
) -> None:
    token = WorkerToken(Settings(web_token=TOKEN, **changes))
    if goes:
        assert token.headers(url) == {"Authorization": f"Bearer {TOKEN}"}
        return
    with pytest.raises(AccessError, match="plain http"):
        token.headers(url)
    assert WorkerToken(Settings(**changes)).headers(url) == {}, "without a token anybody may be asked"


@pytest.mark.parametrize("networks", ["10.0.0.1/8", "a b", "http://a", "10.0.0.0/33"])
def test_networks_that_are_none_are_refused(networks: str) -> None:
    with pytest.raises(ConfigError, match="web_token_networks"):
        Settings(web_token_networks=networks)


def record(**changes: Any) -> bytes:
    table = {"version": 1, "partitions": 4, "active": [0], "standby": [], **changes.pop("table", {})}
    return msgspec.json.encode(
        {
            "url": "http://a:1",
            "generation": 1,
            "started_ms": 0,
            "at_ms": 0,
            "tables": {"totals": table},
            **changes,
        }
    )


BAD = {
    "bytes": b"\xff\xfe",
    "text": b"not json",
    "utf8": record().replace(b"totals", b"\xff\xff"),
    "types": record(generation="x"),
    "list": b"[]",
    "generation": record(generation=1 << 40),
    "past": record(generation=-5),
    "key": record(url="http://b:1"),
    "negative": record(table={"active": [-1]}),
    "beyond": record(table={"standby": [4]}),
    "building": record(table={"building": [4]}),
    "earlier": record(table={"earlier": {"version": 1, "partitions": [4]}}),
    "many": record(table={"partitions": 10_000_000}),
    "none": record(table={"partitions": 0}),
    "huge": record(url="http://a:1", tables={"x" * 2_000_000: {"version": 1, "partitions": 1}}),
}


@pytest.mark.parametrize("name", BAD)
def test_records_that_no_worker_writes_are_refused(name: str) -> None:
    assert read_claims("http://a:1", record()).url == "http://a:1"
    with pytest.raises(ValueError, match=r"\S"):
        read_claims("http://a:1", BAD[name])


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://[::1",
        "http://a:99999",
        "file:///etc/passwd",
        "http://u:p@a:1",
        "http://a:1/x",
        "http://a\r\nb:1",
    ],
)
def test_urls_that_no_worker_has_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read_claims(url, record(url=url))


@scenario
async def test_bad_records_are_ignored_and_counted() -> None:
    topic = WorkersTopic(Settings(app="shop"))
    try:
        for key, value in (
            (b"\xff\xfe", record()),
            (b"http://[::1", record(url="http://[::1")),
            *((b"http://a:1", bad) for bad in BAD.values()),
        ):
            topic._learn(key, value)
        assert topic.ignored == len(BAD) + 2
        topic._learn(b"\xff", None)
        topic._learn(b"http://a:1", record())
        assert [*topic._claims] == ["http://a:1"]
    finally:
        await topic.close()


@scenario
async def test_a_key_that_is_no_string_gets_an_error_of_ours() -> None:
    async with one_worker() as worker, client(worker) as tables:
        for wrong in (None, 5, b"ada"):
            with pytest.raises(QueryError, match="a key is a string"):
                await tables.get(TOTALS, wrong)  # type: ignore[call-overload]
        with pytest.raises(QueryError, match="a table is a Processor"):
            await tables.get(None, "ada")  # type: ignore[call-overload]
        with pytest.raises(QueryError, match="single string"):
            await tables.get_many(TOTALS, "ada")
