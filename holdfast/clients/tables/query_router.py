"""Finds the answer to one question about one partition: the workers to ask, the retries, and the error that
is raised in the end.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import msgspec
from yarl import URL

from holdfast.clients.tables.directory import Directory, check_origin
from holdfast.clients.tables.questions import AnyQuestion
from holdfast.clients.tables.web_tls import WorkerToken, client_tls
from holdfast.clock import Backoff, Clock
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.query_wire import (
    LIMIT_REPLY_BYTES,
    MSGPACK,
    TOPIC_IDS,
    GlobalReply,
    Refusal,
    Reply,
    decode_refusal,
)
from holdfast.errors import (
    AccessError,
    BrokerError,
    ConfigError,
    HoldfastError,
    MovedError,
    NoSuchTableError,
    NotReadyError,
    OffsetTimeoutError,
    OtherTopicError,
    QueryError,
)
from holdfast.tracing.spans import outgoing, sending

A = TypeVar("A", bound=Reply | GlobalReply)

LIMIT_CONNECTIONS = 256
LIMIT_CONNECTIONS_PER_WORKER = 64
KEEPALIVE_S = 30.0  # below the server's, so that it is seldom the server that closes an idle connection
ATTEMPT_S, LIMIT_ATTEMPT_S = 2.0, 64.0
"""The time for a worker to answer at first, and at most: each round in which one was silent doubles it for
this question, or a slower worker could never answer.
"""
REFRESH_S, LIMIT_REFRESH_S = 2.0, 64.0
"""The time for one look at the directory, and at most until it was read once: each failure doubles it, or a
broker whose every answer takes longer could never answer. A client that knows workers asks them again soon
instead.
"""
ASKED_LAST_S = 10.0
CURRENT_S = 1.0
"""A client that knows several versions of a table uses the current one as last read for so long."""
LIMIT_FAILED = 1_000
LIMIT_READ_BYTES = 2 * LIMIT_REPLY_BYTES
"""The most bytes of a reply that are read.

Workers stop at `LIMIT_REPLY_BYTES` of rows; keys, and the form that holds them, are not more than that again.
"""
LIMIT_TOLD = 1_000
"""Characters of a refusal that an error repeats."""
LIMIT_HEADERS, LIMIT_HEADER_BYTES = 64, 8 << 10
_LEAST_ATTEMPT_S = 0.25
_LEAST_LEFT_S = 0.01
_BACKOFF = Backoff(0.02, 0.5)


class _Setback(Exception):
    """An attempt that brought no answer, and what to make of it.

    *at_once*: ask again without more ado, the worker is the right one. *final*: asking again cannot help.
    *cut*: it was short because the deadline is near, so its silence says less than the obstacle before.
    *silent*: a worker took all of its time, and may need more. *busy*: a worker is there and says that it
    cannot answer yet, so that older claims than its own are not worth a question.
    """

    def __init__(
        self,
        error: HoldfastError,
        *,
        moved_to: str | None = None,
        at_once: bool = False,
        final: bool = False,
        cut: bool = False,
        silent: bool = False,
        busy: bool = False,
    ) -> None:
        super().__init__(str(error))
        self.error, self.moved_to, self.at_once, self.final, self.cut, self.silent, self.busy = (
            error,
            moved_to,
            at_once,
            final,
            cut,
            silent,
            busy,
        )


def _telling(before: _Setback, met: _Setback) -> _Setback:
    """Return which of two in one round says more: the one about a worker that is there and silent, not about
    an older claim without a worker.
    """
    speaks = met.silent or met.busy or met.at_once or met.moved_to is not None
    return before if before.silent and not speaks else met


class _TooLong(Exception):
    """More came than a worker ever sends."""


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """Return the whole body, or raise _TooLong before more than `LIMIT_READ_BYTES` of it are held.

    An unread rest ends its connection.
    """
    if (response.content_length or 0) > LIMIT_READ_BYTES:
        raise _TooLong
    pieces: list[bytes] = []
    size_bytes = 0
    async for piece in response.content.iter_any():
        size_bytes += len(piece)
        if size_bytes > LIMIT_READ_BYTES:
            raise _TooLong
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class QueryRouter:
    """Asks workers over pooled connections, and asks the directory when they are not where they were.

    Every question is a read, so it can be asked again. It is, until its deadline: a worker that moves,
    restores, restarts or hangs costs time but is no error. At the deadline the error names the last obstacle.
    """

    def __init__(self, settings: Settings, directory: Directory, clock: Clock) -> None:
        self._settings, self._directory, self._clock = settings, directory, clock
        self._session: aiohttp.ClientSession | None = None
        self._tls: ssl.SSLContext | None = None
        self._token = WorkerToken(settings)
        self._failed: dict[str, float] = {}
        """Until when (monotonic) a URL is asked last, since it did not answer: a claim may be old, or
        false.
        """
        self._look: asyncio.Task[BrokerError | None] | None = None
        self._refreshed, self._read_s, self._look_s = 0, float("-inf"), REFRESH_S

    async def __aenter__(self) -> Self:
        headers = {"Accept": MSGPACK, "Content-Type": MSGPACK}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=LIMIT_CONNECTIONS,
                limit_per_host=LIMIT_CONNECTIONS_PER_WORKER,
                keepalive_timeout=KEEPALIVE_S,
                ttl_dns_cache=30,
            ),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            # no worker compresses; what does is not inflated but refused as what cannot be read
            auto_decompress=False,
            max_headers=LIMIT_HEADERS,
            max_line_size=LIMIT_HEADER_BYTES,
            max_field_size=LIMIT_HEADER_BYTES,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        if self._look is not None:
            self._look.cancel()
        if session is not None:
            await session.close()
        await self._directory.close()

    def _opened(self) -> aiohttp.ClientSession:
        """Return the connections; ConfigError outside `async with`, where every question would wait in
        vain.
        """
        if self._session is None:
            raise ConfigError(
                "the table client is not open: use it in a `with` statement (`async with` on an event loop),"
                " and not after it"
            )
        return self._session

    # -- the directory

    async def partitions(self, processor: Processor[Any, Any], deadline_s: float) -> int:
        """Return how many partitions the table has."""
        self._opened()
        name, version, waits_s, was_read = processor.name, processor.version, _BACKOFF.waits_s(), False
        while True:
            count = self._directory.workers.partitions(name, version)
            if count:
                return count
            failure = await self._refresh(self._refreshed, deadline_s)
            was_read = was_read or failure is None
            if self._directory.workers.partitions(name, version):
                continue
            if (left_s := self._left_s(deadline_s)) <= 0:
                if (
                    failure is not None and not was_read
                ):  # else it is the deadline that cut the last look short
                    raise failure
                raise NotReadyError(
                    f"no worker of {self._settings.app} has announced table {name} in time: is one running?"
                    " `holdfast -A MODULE worker` starts one"
                )
            self._refuse_other_version(processor)
            await asyncio.sleep(min(next(waits_s), left_s))

    def _refuse_other_version(self, processor: Processor[Any, Any]) -> None:
        versions = self._directory.workers.versions(processor.name)
        if versions and processor.version not in versions:
            raise NoSuchTableError(
                f"workers of {self._settings.app} serve {processor.name} in version"
                f" {', '.join(map(str, versions))}, not {processor.version}: give the client the processor"
                " that the workers run"
            )

    async def answering(
        self, processors: Sequence[Processor[Any, Any]], deadline_s: float
    ) -> Processor[Any, Any]:
        """Return which of several versions of a processor is to be asked (`Workers.answering`), as of
        CURRENT_S ago at most.

        Raises BrokerError when the directory was never read by *deadline_s*.
        """
        self._opened()
        name, by_version = processors[0].name, {each.version: each for each in processors}
        waits_s = _BACKOFF.waits_s()
        while self._clock.monotonic_s() - self._read_s > CURRENT_S:
            failure = await self._refresh(self._refreshed, deadline_s)
            if failure is None or self._refreshed:
                break
            if (left_s := self._left_s(deadline_s)) <= 0:
                raise failure
            await asyncio.sleep(min(next(waits_s), left_s))
        return by_version[self._directory.workers.answering(name, [*by_version])]

    async def _refresh(self, seen: int, deadline_s: float) -> BrokerError | None:
        """Update the directory, unless another caller did since *seen* was read; return why it could not be.

        A look is shared, and takes the time it needs: it continues when a caller's time is over, or is
        cancelled. If each caller could cut it, many hasty ones would together keep a slow broker from
        answering.
        """
        self._opened()
        if self._refreshed != seen:
            return None
        if self._look is None:
            self._look = asyncio.create_task(self._looked())
        look = self._look
        await asyncio.wait([look], timeout=max(0.0, self._left_s(deadline_s)))
        if look.cancelled():
            self._opened()
        if look.done():
            return look.result()
        return BrokerError(
            f"the workers topic {self._settings.workers_topic} was not read in time; check"
            " bootstrap.servers and the broker"
        )

    async def _looked(self) -> BrokerError | None:
        try:
            await self._directory.refresh(self._look_s)
        except BrokerError as error:
            if not self._refreshed:
                self._look_s = min(2 * self._look_s, LIMIT_REFRESH_S)
            return error
        finally:
            self._look = None
        self._refreshed += 1
        self._read_s, self._look_s = self._clock.monotonic_s(), REFRESH_S
        return None

    def _candidates(self, question: AnyQuestion) -> list[str]:
        urls = question.candidates(self._directory.workers)
        if self._failed and len(urls) > 1:
            now_s = self._clock.monotonic_s()
            urls.sort(key=lambda url: self._failed.get(url, now_s) > now_s)
        return urls

    # -- asking

    async def ask(self, question: AnyQuestion, decode: Callable[[bytes], A], deadline_s: float) -> A:
        """Return the reply to *question*; raises a QueryError, or BrokerError when no owner is known for
        want of Kafka.
        """
        self._opened()
        name = f"{question.verb} {str(question).partition('/')[0]}"
        with sending(name, "CLIENT", {"holdfast.question": str(question)}):
            return await self._ask(question, decode, deadline_s)

    async def _ask(self, question: AnyQuestion, decode: Callable[[bytes], A], deadline_s: float) -> A:
        waits_s, told, unread, was_read = _BACKOFF.waits_s(), None, None, False
        given_s = ATTEMPT_S
        while True:
            seen, known = self._refreshed, self._candidates(question)
            met = await self._round(question, decode, deadline_s, given_s)
            if not isinstance(met, _Setback):
                return met
            if met.silent:
                given_s = min(2 * given_s, LIMIT_ATTEMPT_S)
            told = told if met.cut and told is not None else met
            if not met.final and not met.at_once and self._left_s(deadline_s) > _LEAST_LEFT_S:
                unread = await self._refresh(seen, deadline_s)
                was_read = was_read or unread is None
            now_known = self._candidates(question)
            if met.final or (left_s := self._left_s(deadline_s)) <= _LEAST_LEFT_S:
                raise told.error if now_known or was_read or unread is None else unread
            if met.at_once:
                continue
            if question.processor is not None:
                self._refuse_other_version(question.processor)
            if now_known == known:
                await asyncio.sleep(min(next(waits_s), left_s / 2))

    def _left_s(self, deadline_s: float) -> float:
        return deadline_s - self._clock.monotonic_s()

    async def _round(
        self, question: AnyQuestion, decode: Callable[[bytes], A], deadline_s: float, given_s: float
    ) -> A | _Setback:
        """Ask the owner, then the worker to which it says the partition went, then its substitutes."""
        setback = _Setback(
            NotReadyError(
                f"no worker of {self._settings.app} claims {question}: none is running, or a rebalance is"
                " under way"
            )
        )
        urls, redirected = self._candidates(question), False
        final: _Setback | None = None
        all_final, silent = True, False
        while urls:
            url = urls.pop(0)
            try:
                reply = await self._attempt(url, question, decode, deadline_s, given_s)
            except _Setback as met:
                if met.final:
                    final = met
                else:
                    setback, all_final = _telling(setback, met), False
                silent |= met.silent
                self._note_failure(url, met)
            else:
                self._failed.pop(url, None)
                return reply
            if setback.at_once or self._left_s(deadline_s) <= 0:
                break
            if setback.busy:
                urls = question.besides(urls, self._directory.workers)
            if setback.moved_to is not None and not redirected:
                redirected = True
                urls.insert(0, setback.moved_to)
        # A worker that a retry cannot help may be no worker at all: only if no other is known, that is the
        # last word.
        told = final if final is not None and all_final else setback
        told.silent = silent
        return told

    def _note_failure(self, url: str, met: _Setback) -> None:
        if met.busy or met.at_once or met.cut:
            return
        if len(self._failed) > LIMIT_FAILED:
            self._failed.clear()
        self._failed[url] = self._clock.monotonic_s() + ASKED_LAST_S

    async def _attempt(
        self, url: str, question: AnyQuestion, decode: Callable[[bytes], A], deadline_s: float, given_s: float
    ) -> A:
        left_s = max(0.001, self._left_s(deadline_s))
        attempt_s = min(given_s, max(left_s / 2, _LEAST_ATTEMPT_S), left_s)
        try:
            async with (
                asyncio.timeout(attempt_s),
                self._opened().post(
                    self._url(url, question, attempt_s),
                    data=question.body,
                    headers={**self._token.headers(url), **_topics_of(question), **outgoing()},
                    ssl=self._tls_for(url),
                    allow_redirects=False,
                ) as response,
            ):
                body = await _read(response)
        except AccessError as refused:
            raise _Setback(refused, final=True) from None
        except _TooLong:
            message = (
                f"{url} answered for {question} more than {LIMIT_READ_BYTES} bytes, which no worker does: is"
                " it one?"
            )
            raise _Setback(QueryError(message), final=True) from None
        except TimeoutError:
            error = NotReadyError(
                f"{url} did not answer for {question} within {attempt_s:.3g} s: it hangs, is overloaded or"
                " cut off"
            )
            raise _Setback(error, cut=attempt_s < ATTEMPT_S, silent=True) from None
        except aiohttp.ClientError as error:
            raise self._unreachable(url, question, error) from error
        except ValueError as unfit:
            raise _Setback(
                QueryError(f"{url} is not a URL that can be asked for {question}: {unfit}")
            ) from unfit
        if response.status == 200:
            return self._decoded(url, question, decode, body)
        raise self._refused(url, question, response, body)

    def _url(self, url: str, question: AnyQuestion, attempt_s: float) -> URL:
        offsets, terms = question.offsets, question.terms
        if offsets is None and question.staleness is None:
            return _plain_url(url, f"{question.path}?{'&'.join(terms)}" if terms else question.path)
        if offsets is not None:
            # The worker gives up a little earlier than this attempt, so that its word on how far it is
            # arrives.
            terms += [
                f"at-offset={offsets}",
                f"timeout-ms={int(max(attempt_s * 0.75, attempt_s - 0.1) * 1000)}",
            ]
        return URL(f"{_plain_url(url, question.path)}?{'&'.join(terms)}", encoded=True)

    def _tls_for(self, url: str) -> ssl.SSLContext | bool:
        if not url.startswith("https:"):
            return True
        if self._tls is None:
            self._tls = client_tls(self._settings)
        return self._tls

    def _decoded(self, url: str, question: AnyQuestion, decode: Callable[[bytes], A], body: bytes) -> A:
        try:
            reply = decode(body)
        except msgspec.DecodeError as error:
            raise _Setback(
                QueryError(
                    f"{url} answered for {question} what this client cannot read ({error}): versions differ"
                ),
                final=True,
            ) from error
        # each question has its kind of reply
        if (why := question.why_other(reply)) is not None:  # type: ignore[arg-type]
            raise _Setback(
                NoSuchTableError(f"{url} {why}: give the client the processor that the workers run"),
                final=True,
            )
        return reply

    # -- obstacles

    def _unreachable(self, url: str, question: AnyQuestion, error: aiohttp.ClientError) -> _Setback:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ssl.SSLError):
                message = (
                    f"{url} and this client do not accept each other's certificates"
                    f" ({getattr(cause, 'reason', None) or cause})"
                )
                return _Setback(
                    AccessError(
                        f"{message}: set web_tls_ca, web_tls_cert and web_tls_key as the workers have them"
                    ),
                    final=True,
                )
            cause = cause.__cause__ or cause.__context__
        if (
            url.startswith("https:")
            and self._settings.web_tls_cert is None
            and not isinstance(error, aiohttp.ClientConnectorError)
        ):
            # Under TLS 1.3 a worker that wants a certificate ends the connection only after the handshake,
            # often without a word.
            message = (
                f"{url} closed the connection while asked for {question}: it may be stopping, or it wants a"
                " certificate"
            )
            return _Setback(
                AccessError(f"{message}, and this client shows none: set web_tls_cert and web_tls_key")
            )
        if isinstance(error, aiohttp.ServerDisconnectedError):
            # An idle connection that the worker closed just when it was used again says nothing about the
            # worker.
            return _Setback(
                NotReadyError(f"{url} closed the connection while asked for {question}: it may be stopping")
            )
        return _Setback(
            NotReadyError(f"{url} cannot be reached for {question} ({error}): it may have stopped")
        )

    def _refused(
        self, url: str, question: AnyQuestion, response: aiohttp.ClientResponse, body: bytes
    ) -> _Setback:
        try:
            refusal = decode_refusal(body)
        except msgspec.DecodeError:
            refusal = Refusal(error="failed", message=f"HTTP {response.status} {response.reason}")
        message = f"{url}: {refusal.message[:LIMIT_TOLD]}"
        match response.status:
            case 421:
                return _Setback(
                    MovedError(f"{message}; the directory and the workers do not agree yet, ask again"),
                    moved_to=self._target(url, response),
                    busy=True,
                )
            case 503:
                return _Setback(NotReadyError(message), busy=True)
            case 409:
                return _Setback(OtherTopicError(message), final=True)
            case 504:
                return _Setback(OffsetTimeoutError(message), at_once=True)
            case 404:
                return _Setback(NoSuchTableError(message), final=True)
            case 401 | 403:
                return _Setback(AccessError(f"{message}; set web_token as the workers have it"), final=True)
            case _:
                return _Setback(QueryError(f"{message} (HTTP {response.status} for {question})"), final=True)

    def _target(self, url: str, response: aiohttp.ClientResponse) -> str | None:
        """Return where a redirect leads; never from https to http. Whether the token goes along is judged as
        for any other URL.
        """
        location = response.headers.get("Location", "")
        try:
            target = str(URL(location, encoded=True).origin())
            check_origin(target)
        except ValueError:
            return None
        return None if url.startswith("https:") and not target.startswith("https:") else target


def _topics_of(question: AnyQuestion) -> dict[str, str]:
    """Return the header that says to which topics the question's offsets belong, if that is known."""
    if question.offsets is None or not question.topic_ids:
        return {}
    return {TOPIC_IDS: ",".join(f"{topic}:{topic_id}" for topic, topic_id in question.topic_ids.items())}


@lru_cache(maxsize=4096)
def _plain_url(url: str, path: str) -> URL:
    return URL(f"{url}{path}", encoded=True)
