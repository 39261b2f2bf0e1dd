"""Errors that no retry cures: unknown tables, tokens, certificates. They are raised at once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.clients.tables.client import TableClient
from holdfast.clients.tables.directory import FixedDirectory
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.errors import (
    AccessError,
    HoldfastError,
    MovedError,
    NoSuchTableError,
)
from tests.clients.tables.tabling import (
    ROUTED,
    TOTALS,
    Hanging,
    Total,
    claiming,
    client,
    deadline_after,
    fold,
    one_worker,
    scenario,
    settings,
)
from tests.support.limits import at_most
from tests.support.patience import DEADLINE_S
from tests.support.places import TLS

# -- refused for good


async def refused_at_once(
    tables: TableClient, kind: type[HoldfastError], match: str, table: Processor[Any, Any] | str = TOTALS
) -> None:
    """An error that no retry cures is raised at once, long before the deadline, whether or not the partition
    is known.
    """
    for partition in (None, 0):
        with at_most(5.0, "the refusal"), pytest.raises(kind, match=match):
            await tables.get(table, "ada", partition=partition, timeout_s=300)


@scenario
async def test_an_unknown_table_is_reported_at_once() -> None:
    other: Processor[Any, Total] = Processor(
        name="other", source="orders", decode=bytes, fold=fold, row=Total
    )
    async with one_worker() as worker, client(worker) as tables:
        await refused_at_once(tables, NoSuchTableError, "only: routed, totals", "other")
        await refused_at_once(tables, NoSuchTableError, "only: routed, totals", other)
    async with MemoryWorker(settings(), [ROUTED], partitions=1) as worker:
        claims = msgspec.structs.replace(worker.claims(), tables=claiming(0))
        async with client(directory=FixedDirectory([claims])) as tables:
            await refused_at_once(tables, NoSuchTableError, "its tables: routed")


@scenario
async def test_another_version_of_a_table_is_another_table() -> None:
    newer: Processor[Any, Total] = Processor(
        name="totals", source="orders", decode=bytes, fold=fold, row=Total, version=2
    )
    async with MemoryWorker(settings(), [newer], partitions=1) as worker:
        async with client(worker) as tables:
            await refused_at_once(tables, NoSuchTableError, "in version 2, not 1")
        lying = msgspec.structs.replace(worker.claims(), tables=claiming(0))
        async with client(directory=FixedDirectory([lying])) as tables:
            await refused_at_once(tables, NoSuchTableError, "version 2 here, not 1")


@scenario
async def test_a_wrong_or_missing_token_is_reported_at_once_and_the_right_one_answers() -> None:
    async with MemoryWorker(settings(web_token="open-sesame"), [TOTALS], partitions=1) as worker:
        for token, match in ((None, "asks for a token"), ("open-sesam", "not this worker's")):
            async with client(worker, web_token=token) as tables:
                await refused_at_once(tables, AccessError, match)
        async with client(worker, web_token="open-sesame") as tables:
            assert (await tables.get(TOTALS, "ada")).value is None


@scenario
async def test_mutual_tls_answers_holders_of_a_certificate_and_refuses_the_others_at_once() -> None:
    authority: dict[str, Any] = {"web_tls_ca": TLS / "ca.pem"}
    server: dict[str, Any] = {"web_tls_cert": TLS / "server.pem", "web_tls_key": TLS / "server-key.pem"}
    ours: dict[str, Any] = {"web_tls_cert": TLS / "client.pem", "web_tls_key": TLS / "client-key.pem"}
    async with MemoryWorker(settings(**authority, **server), [TOTALS], partitions=1) as worker:
        assert worker.url.startswith("https:")
        async with client(worker, **authority, **ours) as tables:
            assert (await tables.get(TOTALS, "ada")).value is None
        async with client(worker, web_tls_ca=TLS / "stranger.pem", **ours) as tables:
            await refused_at_once(tables, AccessError, "certificates")
        async with client(worker) as tables:
            await refused_at_once(tables, AccessError, "certificates")


@scenario
async def test_a_client_that_shows_no_certificate_where_one_is_wanted_gets_the_cause_by_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "ca.pem"))  # it trusts the worker but has nothing to show
    chosen = settings(
        web_tls_ca=TLS / "ca.pem", web_tls_cert=TLS / "server.pem", web_tls_key=TLS / "server-key.pem"
    )
    async with MemoryWorker(chosen, [TOTALS], partitions=1) as worker, client(worker) as tables:
        with deadline_after(), pytest.raises(AccessError, match="certificate"):
            await tables.get(TOTALS, "ada", timeout_s=DEADLINE_S)


@scenario
async def test_a_token_is_never_carried_from_https_to_http() -> None:
    secure = settings(
        web_tls_cert=TLS / "server-keystore.pem", web_tls_key=TLS / "server-key.pem", web_token="t"
    )
    async with MemoryWorker(secure, [TOTALS], partitions=1, active=[]) as lured, Hanging() as thief:
        lured.owners["totals", 0] = thief.url
        claims = msgspec.structs.replace(lured.claims(), tables=claiming(0))
        trusting = Settings(
            app="shop", web_token="t", web_tls_cert=secure.web_tls_cert, web_tls_key=secure.web_tls_key
        )
        async with TableClient(trusting, [TOTALS], directory=FixedDirectory([claims])) as tables:
            with deadline_after(), pytest.raises(MovedError):
                await tables.get(TOTALS, "ada", timeout_s=DEADLINE_S)
        assert thief.asked == 0
