"""The report of a worker at `/tables`, and the requests to all of them."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import aiohttp
import msgspec

from holdfast.clients.tables.web_tls import WorkerToken, client_tls
from holdfast.config import Settings
from holdfast.core.engine.query_wire import MSGPACK
from holdfast.core.untrusted import careful
from holdfast.errors import AccessError
from holdfast.web.bodies import whole_body

ATTEMPT_S = 1.5
LIMIT_BYTES = 64 << 20
LIMIT_AT_ONCE = 64
LIMIT_TOLD = 300


class ChangelogReport(msgspec.Struct, frozen=True):
    """The progress of reading a changelog: the next offset, and its end."""

    next: int
    end: int


class HeldOriginReport(msgspec.Struct, frozen=True):
    """An origin that windows or a join wait for: of the source *topic*, a partition, or "unheard", of the
    topics *of*. *lag_s* is by how much event time others are ahead, None where it has said nothing, and
    *held_s* for how long by the clock.
    """

    topic: str
    origin: str
    of: list[str]
    lag_s: float | None
    held_s: float

    @property
    def named(self) -> str:
        """Return which log it is, in words."""
        if self.origin == "unheard":
            return f"a partition of {' and '.join(self.of)} that has said nothing"
        return " and ".join(f"{each}-{self.origin}" for each in self.of)


class HeldReport(msgspec.Struct, frozen=True):
    """A partition that a worker has. Values that workers of older releases do not report are None."""

    partition: int
    role: str
    serving: bool
    as_of_offset: int = -1
    as_of: dict[str, int] = {}
    version: int | None = None
    standing: str | None = None
    partial: dict[str, int] = {}
    stream_ms: int = -1
    behind: int | None = None
    age_ms: int | None = None
    changelog: ChangelogReport | None = None
    behind_of: dict[str, int] = {}
    """Records of each source that are not folded yet, where there are several."""
    held_back: list[HeldOriginReport] = []
    emitted: dict[str, int] = {}
    """Records emitted to each topic since this worker started."""


class TableReport(msgspec.Struct, frozen=True):
    """A table as a worker declares it, with the partitions that it has."""

    version: int
    partitions: int
    held: list[HeldReport]
    building: list[int] = []


class GlobalReport(msgspec.Struct, frozen=True):
    """A worker's copy of a global table of *source*: the last offset of each partition, and how many offsets
    are not in it.
    """

    source: str
    position: list[int]
    behind: int | None = None


class WorkerReport(msgspec.Struct, frozen=True):
    """The whole report of a worker at one moment; *unready* is why it is not ready."""

    app: str
    url: str
    tables: dict[str, TableReport]
    release: str = ""
    unready: str | None = None
    globals: dict[str, GlobalReport] = {}


decode_report = careful(msgspec.msgpack.Decoder(WorkerReport).decode)


@dataclass(frozen=True, slots=True)
class Silence:
    """Why a worker reported nothing. *late*: it was only too slow, so its last report may still hold."""

    cause: str
    late: bool = False


class WorkerReports:
    """Asks workers over pooled connections. Use it with `async with`."""

    def __init__(self, settings: Settings) -> None:
        self._app, self._settings, self._token = settings.app, settings, WorkerToken(settings)
        self._tls: ssl.SSLContext | None = None
        self._at_once = asyncio.Semaphore(LIMIT_AT_ONCE)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers={"Accept": MSGPACK},
            timeout=aiohttp.ClientTimeout(total=ATTEMPT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def ask(self, urls: Iterable[str]) -> dict[str, WorkerReport | Silence]:
        """Return each worker's report, or why there is none; takes ATTEMPT_S for each LIMIT_AT_ONCE of them
        at the longest.
        """
        asked = list(urls)
        return dict(zip(asked, await asyncio.gather(*map(self._ask, asked)), strict=True))

    async def _ask(self, url: str) -> WorkerReport | Silence:
        assert self._session is not None, "use `async with`"
        try:
            async with (
                self._at_once,
                self._session.get(
                    f"{url}/tables",
                    headers=self._token.headers(url),
                    ssl=self._tls_for(url),
                    allow_redirects=False,
                ) as response,
            ):
                body = await whole_body(response, LIMIT_BYTES)
        except AccessError as error:
            return Silence(str(error))
        except TimeoutError:
            return Silence(f"did not answer within {ATTEMPT_S:g} s", late=True)
        except (
            aiohttp.ClientConnectorError
        ) as error:  # whose own text has words about TLS where there is none
            number = error.os_error.errno
            cause = os.strerror(number) if number is not None and number > 0 else str(error.os_error)
            return Silence(f"cannot be reached: {cause}"[:LIMIT_TOLD])
        except (aiohttp.ClientError, ValueError) as error:
            return Silence(f"cannot be reached: {str(error)[:LIMIT_TOLD]}")
        return self._read_report(url, response.status, body)

    def _tls_for(self, url: str) -> ssl.SSLContext | bool:
        if not url.startswith("https:"):
            return True
        if self._tls is None:
            self._tls = client_tls(self._settings)
        return self._tls

    def _read_report(self, url: str, status: int, body: bytes) -> WorkerReport | Silence:
        if status in (401, 403):
            return Silence(
                "refused the question: set web_token, or the certificates, as the workers have them"
            )
        if status != 200:
            return Silence(f"answered with HTTP {status}")
        try:
            report = decode_report(body)
        except msgspec.DecodeError as error:
            return Silence(
                f"answered what the console cannot read ({error}): releases differ, or it is no worker"
            )
        if report.app != self._app:
            return Silence(f"is a worker of {report.app[:100]} by now, not of {self._app}")
        return report
