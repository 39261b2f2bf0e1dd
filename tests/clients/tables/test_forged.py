"""The harm that a writer of the workers topic can do to clients: it costs them a little time, no more."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, Self

import msgspec
import pytest

from holdfast.clients.tables.directory import FixedDirectory, WorkersTopic, read_claims
from holdfast.clients.tables.web_tls import WorkerToken
from holdfast.config import Settings
from holdfast.console.watching.reports import WorkerReport, WorkerReports
from holdfast.core.engine.query_wire import WorkerClaims
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.errors import AccessError, ConfigError, QueryError
from tests.clients.tables.tabling import TOTALS, Total, client, one_worker, scenario, settings
from tests.support.patience import DEADLINE_S
from tests.support.places import TLS

TOKEN = "open-sesame"
AUTHORITY = {
    "web_tls_cert": TLS / "client.pem",
    "web_tls_key": TLS / "client-key.pem",
    "web_tls_ca": TLS / "ca.pem",
}


class Listening:
    """Takes connections, keeps what it is sent, and answers *answer*; over TLS if *secure*."""

    def __init__(self, answer: bytes = b"", *, secure: bool = False) -> None:
        self.heard, self._answer, self._tls = b"", answer, None
        self.connections = 0
        if secure:
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._tls.load_cert_chain(TLS / "server.pem", TLS / "server-key.pem")

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._hear, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"
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


@scenario
async def test_a_certificate_that_is_trusted_gets_a_thief_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can have a certificate of a public authority, for a host of their own."""
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
    async with (
        Listening(secure=True) as thief,
        MemoryWorker(settings(web_token=TOKEN), [TOTALS], partitions=1) as worker,
    ):
        worker.put(TOTALS, 0, "ada", Total(3), offset=1)
        elsewhere = thief.url.replace("127.0.0.1", "localhost")
        known = FixedDirectory([worker.claims(), forged(worker, elsewhere)])
        async with client(directory=known, web_token=TOKEN, web_token_networks="127.0.0.1") as tables:
            assert (await tables.get(TOTALS, "ada", partition=0)).value == Total(3)
        assert (thief.connections, thief.heard) == (0, b"")
        alone = FixedDirectory([forged(worker, elsewhere)])
        async with client(directory=alone, web_token=TOKEN, web_token_networks="127.0.0.1") as tables:
            with pytest.raises(AccessError, match="name its host or network in web_token_networks"):
                await tables.get(TOTALS, "ada", partition=0, timeout_s=DEADLINE_S)
        async with client(directory=alone, web_token_networks="127.0.0.1") as tables:
            with pytest.raises(QueryError):
                await tables.get(TOTALS, "ada", partition=0, timeout_s=1.0)
        assert thief.connections, "without a token anybody may be asked: else the thief was never in reach"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 421])
@scenario
async def test_a_worker_that_is_allowed_leads_the_token_to_no_other_host(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
    async with Listening(secure=True) as thief:
        location = thief.url.replace("127.0.0.1", "localhost")
        answer = f"HTTP/1.1 {status} X\r\nLocation: {location}/tables\r\nContent-Length: 0\r\n\r\n".encode()
        async with Listening(answer) as liar, one_worker() as worker:
            known = FixedDirectory([msgspec.structs.replace(worker.claims(), url=liar.url)])
            async with client(directory=known, web_token=TOKEN, web_token_networks="127.0.0.1") as tables:
                with pytest.raises(QueryError):
                    await tables.get(TOTALS, "ada", partition=0, timeout_s=1.0)
            assert TOKEN.encode() in liar.heard
        assert thief.connections == 0


@pytest.mark.parametrize("name", ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy"])
@scenario
async def test_a_proxy_of_the_environment_gets_no_token(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        Listening() as proxy,
        MemoryWorker(settings(web_token=TOKEN), [TOTALS], partitions=1) as worker,
    ):
        monkeypatch.setenv(name, proxy.url)
        async with client(worker, web_token=TOKEN) as tables:
            assert (await tables.get(TOTALS, "ada", partition=0)).value is None
        async with WorkerReports(settings(web_token=TOKEN)) as reports:
            (told,) = (await reports.ask([worker.url])).values()
            assert isinstance(told, WorkerReport)
        assert proxy.connections == 0


@scenario
async def test_the_console_sends_the_token_to_no_thief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))
    async with (
        Listening(secure=True) as thief,
        WorkerReports(settings(web_token=TOKEN, web_token_networks="127.0.0.1")) as reports,
    ):
        url = thief.url.replace("127.0.0.1", "localhost")
        assert "web_token_networks" in getattr((await reports.ask([url]))[url], "cause", "")
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
        ({}, "https://127.0.0.1:1", True),
        ({}, "https://attacker.example:1", False),
        ({}, "https://localhost.attacker.example:1", False),
        ({}, "https://10.0.0.1:1", False),
        ({}, "http://attacker.example:1", False),
        ({}, "http://localhost.attacker.example:1", False),
        ({}, "http://127.0.0.1.attacker.example:1", False),
        ({}, "http://10.0.0.1:1", False),
        ({"web_token_networks": "10.0.0.0/8, tables"}, "http://10.9.9.9:1", True),
        ({"web_token_networks": "10.0.0.0/8, tables"}, "http://TABLES:1", True),
        ({"web_token_networks": "10.0.0.0/8, tables"}, "https://Tables:1", True),
        ({"web_token_networks": "10.0.0.0/8, tables"}, "http://127.0.0.1:1", False),
        ({"web_token_networks": "10.0.0.0/8, tables"}, "https://localhost:1", False),
        ({"web_token_networks": "*.workers.internal"}, "https://shop-0.workers.internal:1", True),
        ({"web_token_networks": "*.workers.internal"}, "https://workers.internal:1", False),
        ({"web_token_networks": "*.workers.internal"}, "https://notworkers.internal:1", False),
        ({"web_token_networks": "*.workers.internal"}, "https://a.workers.internal.evil.example:1", False),
        ({"web_url": "https://shop-0.example:1"}, "https://shop-0.example:1", True),
        ({"web_url": "https://shop-0.example:1"}, "https://shop-1.example:1", False),
        ({"web_url": "http://shop-0.example:1"}, "http://shop-0.example:1", False),
        (AUTHORITY, "https://attacker.example:1", False),
        (AUTHORITY, "https://127.0.0.1:1", True),
        (
            {"web_tls_cert": TLS / "client.pem", "web_tls_key": TLS / "client-key.pem"},
            "http://127.0.0.1:1",
            False,
        ),
    ],
)
def test_the_token_goes_only_to_what_the_settings_name_over_tls_too(
    changes: dict[str, Any], url: str, goes: bool
) -> None:
    token = WorkerToken(Settings(web_token=TOKEN, **changes))
    if goes:
        assert token.headers(url) == {"Authorization": f"Bearer {TOKEN}"}
        return
    with pytest.raises(AccessError, match="web_token is not sent to"):
        token.headers(url)
    assert WorkerToken(Settings(**changes)).headers(url) == {}, "without a token anybody may be asked"


@pytest.mark.parametrize("networks", ["10.0.0.1/8", "a b", "http://a", "10.0.0.0/33"])
def test_networks_that_are_not_networks_are_refused(networks: str) -> None:
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
