"""The worker's web port: queries, health and metrics over HTTP, answered from the moment the worker starts.

It is a server of its own and not Faust's, whose pages show tables to anyone, answer from partitions the
worker has lost, and know neither tokens nor TLS. Start it before recovery: while partitions are restoring, it
says so.
"""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from importlib import metadata
from math import isinf
from typing import Any

from aiohttp import web
from mode import Service

from holdfast.agents import descriptors
from holdfast.agents.metrics import Metrics, age_bound_ms, behind, source_positions
from holdfast.agents.serving import UNKNOWN, Replica, Serving
from holdfast.agents.web.access import Access
from holdfast.agents.web.bounding import bounded, size_of_row, size_of_value
from holdfast.agents.web.global_routes import GlobalPages, described
from holdfast.agents.web.inspection_routes import InspectionPages
from holdfast.agents.web.reaching import (
    as_of,
    has_reached,
    require_topics,
    shown_offsets,
    wanted_of,
)
from holdfast.agents.web.replies import (
    OF_A_SCAN,
    OF_WINDOWS,
    QueryTerms,
    RequestRefused,
    check_form,
    keys_of,
    page_of,
    respond,
    respond_malformed,
    respond_refused,
    terms_of,
    wants_msgpack,
    whole,
    windows_of,
)
from holdfast.agents.web.window_pages import page_of_windows
from holdfast.clients.tables.web_tls import WorkerToken, server_tls
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.console.place import ROOT
from holdfast.core.engine import query_wire
from holdfast.core.engine.declared.graph import origins_of_topic
from holdfast.core.engine.declared.processor import Processor, table_name
from holdfast.core.engine.query_wire import PageReply, RowReply, RowsReply, Staleness, render
from holdfast.core.engine.state.codec import RowCodec, decode_untyped
from holdfast.core.engine.state.lost_heads import told_lost
from holdfast.core.streams.windowing.rows import holds_windows
from holdfast.errors import ConfigError, StoreError
from holdfast.tracing.spans import handling
from holdfast.web.headers import NO_PAGE
from holdfast.web.port import ConnectionLimits, Troubles, WebPort

logger = logging.getLogger(__name__)

LIMIT_IN_FLIGHT = 2_000
RETRY_AFTER_MS = 200

OpenConsole = Callable[[AsyncExitStack], Awaitable[web.Application]]
RouteHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebService(Service):
    """Serves *serving* on the web port of *settings* for as long as it runs."""

    def __init__(
        self,
        settings: Settings,
        serving: Serving,
        metrics: Metrics,
        *,
        pages: Callable[[], Iterable[web.AbstractResource]] = tuple,
        console: OpenConsole | None = None,
        clock: Clock = system_clock,
    ) -> None:
        """*pages* returns the application's own pages, asked for when the port opens; *console* opens the
        pages below /console.
        """
        super().__init__()
        self._settings, self._pages, self._console = settings, pages, console
        self._stack = AsyncExitStack()
        self._mounted: list[web.Application] = []
        self._application = build_application(settings, serving, metrics, clock, self._mounted)
        self._watch_loop = metrics.watch_loop
        self._troubles = Troubles("web port", metrics.web_refused, clock)
        self._port: WebPort | None = None

    async def on_start(self) -> None:
        settings = self._settings
        tls = server_tls(settings)
        connections = descriptors.connections_within(descriptors.raised_limit(), settings.web_connections)
        if connections < settings.web_connections:
            logger.warning(
                "the limit of open files leaves room for %(connections)d of "
                "web_connections=%(web_connections)d",
                {"connections": connections, "web_connections": settings.web_connections},
            )
        for resource in self._pages():
            self._application.router.register_resource(resource)
        if self._console is not None:
            await self._open_console(self._console)
        limits = ConnectionLimits(
            connections=connections,
            per_peer=min(connections, settings.web_connections_per_peer),
            setting="web_connections",
        )
        port = WebPort(
            self._application, limits, tls=tls, troubles=self._troubles, malformed=respond_malformed
        )
        try:
            await port.open(settings.web_bind, settings.web_port)
        except OSError as error:
            await self._stack.aclose()
            raise ConfigError(
                f"cannot listen on {settings.web_bind} port {settings.web_port}: {error.strerror}; set"
                " web_port (`holdfast worker --port`) and web_bind to a free place"
            ) from error
        self._port = port
        self.add_future(self._watch_loop())
        logger.info("web port open: %(url)s", {"url": settings.advertised_url})
        if WorkerToken(settings).withheld_by_others(settings.advertised_url):
            logger.warning(
                "web_token_networks does not name this worker's own %(url)s: other workers, and clients with "
                "the same settings, do not send web_token there, and so cannot ask this worker",
                {"url": settings.advertised_url},
            )

    async def _open_console(self, console: OpenConsole) -> None:
        async with AsyncExitStack() as stack:
            application = await console(stack)
            self._stack = stack.pop_all()
        self._mounted.append(application)
        self._application.add_subapp(ROOT, application)

    def doors(self) -> tuple[Sequence[socket.socket], ssl.SSLContext | None]:
        """Return the sockets that it listens on, and the TLS of what they accept."""
        return ((), None) if self._port is None else self._port.doors

    async def on_stop(self) -> None:
        port, self._port = self._port, None
        if port is not None:
            await port.close()
        await self._stack.aclose()


def build_application(
    settings: Settings,
    serving: Serving,
    metrics: Metrics,
    clock: Clock,
    mounted: Sequence[web.Application],
) -> web.Application:
    """Return the aiohttp application of the web port; those *mounted* in it authorize requests themselves."""
    access, tables = Access(settings), _Tables(settings, serving, metrics, clock)
    copies = GlobalPages(settings.app, serving)
    own: set[web.AbstractResource] = set()
    health, inspections = _Health(serving, metrics), InspectionPages(tables.find)

    @web.middleware
    async def guard(request: web.Request, handler: RouteHandler) -> web.StreamResponse:
        try:
            if any(each in mounted for each in request.match_info.apps):
                return await handler(request)  # it has rules of its own, for people
            resource = request.match_info.route.resource
            if resource is None or resource in own:  # an application's own page judges its forms itself
                check_form(request)
            access.check(request)
            return await handler(request)
        except Exception as error:  # noqa: BLE001  each is told, or logged
            return _told(request, error)

    application = web.Application(middlewares=[guard], client_max_size=query_wire.LIMIT_BODY_BYTES)
    application.add_routes(_routes(tables, copies, inspections, health))
    own.update(application.router.resources())
    application.on_cleanup.append(inspections.close)
    return application


def _routes(
    tables: _Tables, copies: GlobalPages, inspections: InspectionPages, health: _Health
) -> list[web.RouteDef]:
    here = "/tables/{table}/{partition}"
    return [
        web.post(f"{here}/get", tables.counted("get_many", tables.rows)),
        web.post(f"{here}/scan", tables.counted("scan", tables.scan)),
        web.get(f"{here}/scan", tables.counted("scan", tables.scan)),
        web.post(f"{here}/windows", tables.counted("windows", tables.windows)),
        web.get(f"{here}/windows", tables.counted("windows", tables.windows)),
        web.get(here + r"/rows/{key:[\s\S]*}", tables.counted("get", tables.row)),
        web.post(f"{here}/digest", tables.counted("digest", inspections.digest)),
        web.post(f"{here}/stored", tables.counted("stored", inspections.stored)),
        web.post("/globals/{table}/get", tables.counted("get_many", copies.rows, copies.declares)),
        web.post("/globals/{table}/scan", tables.counted("scan", copies.scan, copies.declares)),
        web.get("/globals/{table}/scan", tables.counted("scan", copies.scan, copies.declares)),
        web.get(r"/globals/{table}/rows/{key:[\s\S]*}", tables.counted("get", copies.row, copies.declares)),
        web.get("/tables", tables.list),
        web.get("/health/live", health.live),
        web.get("/health/ready", health.ready),
        web.get("/metrics", health.metrics),
    ]


def _told(request: web.Request, error: Exception) -> web.Response:
    """Return the answer to a request that *error* ended."""
    if isinstance(error, RequestRefused):
        return respond_refused(request, error)
    if isinstance(error, web.HTTPException):
        known = "; see /tables, /health/live, /health/ready, /metrics" if error.status == 404 else ""
        allowed = {name: value for name, value in error.headers.items() if name == "Allow"}
        message = f"{request.method} {request.path[:200]}: {error.reason}{known}"
        return respond_refused(request, RequestRefused(error.status, "malformed", message, headers=allowed))
    if isinstance(error, StoreError):  # closed since, or damaged: then its partition is being taken up again
        return respond_refused(
            request, RequestRefused(503, "not_ready", f"{error}; ask again", retry_after_ms=RETRY_AFTER_MS)
        )
    logger.error("a request failed: %(path)s", {"path": request.path[:200]}, exc_info=error)
    return respond_refused(
        request, RequestRefused(500, "failed", "the worker failed to answer; its log has the cause")
    )


class _Health:
    def __init__(self, serving: Serving, metrics: Metrics) -> None:
        self._serving, self._metrics = serving, metrics

    async def live(self, request: web.Request) -> web.Response:
        return respond(request, {"status": "live"})

    async def ready(self, request: web.Request) -> web.Response:
        cause = self._serving.unready()
        if cause is None:
            notes = {"partial": self._partial(), "misplaced": self._misplaced()}
            return respond(
                request, {"status": "ready", **{name: found for name, found in notes.items() if found}}
            )
        return respond(
            request, {"status": "unready", "cause": cause}, status=503, headers={"Retry-After": "1"}
        )

    def _partial(self) -> list[str]:
        """Return which partitions held here began after a hole in a source: no reason to be unready, for
        nothing here mends it.
        """
        return [
            f"{table} partition {partition} began behind a hole: {told_lost(lost)}"
            for table in sorted(self._serving.tables())
            for partition in range(self._serving.partitions(table))
            if (replica := self._serving.lookup(table, partition)) is not None and (lost := replica.partial)
        ]

    def _misplaced(self) -> list[str]:
        """Return the tables of which queries by key do not find all rows: producers partition them
        otherwise.
        """
        return [
            f"{wrong} of {of} row keys of {table} that were looked at lie where its route does not look"
            for table, (wrong, of) in sorted(self._metrics.misplaced().items())
        ]

    async def metrics(self, request: web.Request) -> web.Response:
        body, content_type = self._metrics.exposition(self._serving, request.headers.get("Accept", ""))
        headers = {"Content-Type": content_type, "Cache-Control": "no-store", **NO_PAGE}
        return web.Response(body=body, headers=headers)


class _Tables:
    """The queries.

    Between finding the replica and the last byte read from it nothing waits, so it cannot be lost in between.
    """

    def __init__(self, settings: Settings, serving: Serving, metrics: Metrics, clock: Clock) -> None:
        self._app, self._url = settings.app, settings.advertised_url
        self._serving, self._metrics, self._clock = serving, metrics, clock
        self._codecs: dict[str, RowCodec[Any]] = {}
        self._release = _release()
        self._in_flight = 0

    def counted(
        self, verb: str, handler: RouteHandler, declares: Callable[[str], bool] | None = None
    ) -> RouteHandler:
        """Return *handler* with a limit on how many run, and its outcomes and times in the metrics.

        *declares* says whether a requested table is one; a processor's by default.
        """
        known = self._declares if declares is None else declares

        async def count(request: web.Request) -> web.StreamResponse:
            if self._in_flight >= LIMIT_IN_FLIGHT:
                raise RequestRefused(
                    503,
                    "not_ready",
                    f"{LIMIT_IN_FLIGHT} queries are in progress here; ask again",
                    retry_after_ms=RETRY_AFTER_MS,
                )
            asked, outcome = request.match_info["table"], "failed"
            table = asked if known(asked) else ""
            self._in_flight += 1
            began_s = self._clock.monotonic_s()
            try:
                with handling(f"{verb} {table or 'unknown'}", "SERVER", (request.headers.items(),)):
                    response = await handler(request)
                outcome = "ok"
                return response
            except RequestRefused as refused:
                outcome = refused.refusal.error
                raise
            finally:
                self._in_flight -= 1
                self._metrics.query(table, verb, outcome, self._clock.monotonic_s() - began_s)

        return count

    async def list(self, request: web.Request) -> web.Response:
        tables = {
            name: self._describe(name, processor)
            for name, processor in sorted(self._serving.tables().items())
        }
        found = {"app": self._app, "url": self._url, "release": self._release, "tables": tables}
        if (cause := self._serving.unready()) is not None:
            found["unready"] = cause
        if copies := self._serving.global_tables():
            found["globals"] = {name: described(each) for name, each in sorted(copies.items())}
        return respond(request, found)

    def _describe(self, name: str, processor: Processor[Any, Any]) -> dict[str, Any]:
        partitions = self._serving.partitions(name)
        held = [
            replica
            for at in range(partitions)
            for replica in (self._serving.lookup(name, at), self._serving.earlier(name, at))
            if replica is not None
        ]
        built = [at for at in range(partitions) if self._serving.building(name, at) is not None]
        waiting = [at for at in built if self._serving.waiting(name, at)]
        return {
            "version": processor.version,
            **(
                {"sources": list(named)}
                if (named := processor.named_sources)
                else {"source": processor.topics[0]}
            ),
            **({"tables": list(processor.tables)} if processor.tables else {}),
            "partitions": partitions,
            **({"building": built} if built else {}),
            **({"waiting": waiting} if waiting else {}),
            "held": [
                {
                    "partition": replica.partition,
                    **({} if replica.role != "earlier" else {"version": replica.processor.version}),
                    "role": replica.role,
                    "serving": replica.serving,
                    # the second key is the old name, which consoles of the last release read
                    **(
                        {}
                        if replica.stalled is None
                        else {"stalled": replica.stalled, "standing": replica.stalled}
                    ),
                    **as_of(replica),
                    "stream_ms": replica.stream_ms,
                    **self._held_back(replica),
                    "approximate_rows": replica.approximate_rows(),
                    **self._progress(replica),
                    **self._emitted(replica),
                }
                for replica in held
            ],
        }

    def _held_back(self, replica: Replica) -> dict[str, Any]:
        """Return which origins the windows or the join of an owner wait for, where they do."""
        held = replica.held_back if replica.active else []
        if not held:
            return {}
        processors = [*self._serving.tables().values()]
        return {
            "held_back": [
                {
                    "topic": each.topic,
                    "origin": each.origin,
                    "of": list(origins_of_topic(processors, each.topic)),
                    "lag_s": None if isinf(each.lag_s) else each.lag_s,
                    "held_s": each.held_s,
                }
                for each in held
            ]
        }

    def _progress(self, replica: Replica) -> dict[str, Any]:
        """Return how far the replica is from the ends of its logs, as far as these are known."""
        told: dict[str, Any] = {}
        if replica.source_end != UNKNOWN:
            told["behind"] = behind(replica)
            if named := replica.processor.named_sources:
                told["behind_of"] = {
                    topic: max(0, end - applied - 1)
                    for topic, applied, end in source_positions(replica)
                    if topic in named and end != UNKNOWN
                }
        if replica.role == "standby" and (age_ms := age_bound_ms(replica, self._clock.now_ms())) is not None:
            told["age_ms"] = age_ms
        if (
            not replica.serving and replica.changelog_end >= 0
        ):  # the client library has a number of its own for what it does not know
            told["changelog"] = {"next": replica.changelog_next, "end": replica.changelog_end}
        return told

    def _emitted(self, replica: Replica) -> dict[str, Any]:
        """Return how many records this worker has emitted from the partition to each topic since it
        started.
        """
        if not replica.active or not replica.processor.emits:
            return {}
        counts = self._metrics.partition(replica.processor.name, replica.partition).emitted_to
        return {"emitted": {str(topic): counts[str(topic)] for topic in replica.processor.emits}}

    # -- the reads

    async def row(self, request: web.Request) -> web.Response:
        key = request.match_info["key"]
        replica = await self._replica(request, terms_of(request.query))
        table = _named(request)
        about, value = _about(replica, table), replica.get(key, table)
        _still(replica)
        if wants_msgpack(request):
            return respond(request, RowReply(**about, key=key, found=value is not None, value=value))
        return respond(
            request,
            {**about, "key": key, "found": value is not None, "value": self._rendered(replica, table, value)},
        )

    async def rows(self, request: web.Request) -> web.Response:
        terms, keys = terms_of(request.query), (await keys_of(request)).keys
        replica, table = await self._replica(request, terms), _named(request)
        about = _about(replica, table)
        values, _ = bounded(
            len(keys),
            lambda got, count: replica.get_many(keys[len(got) : len(got) + count], table),
            size_of_value,
        )
        _still(replica)
        if wants_msgpack(request):
            return respond(request, RowsReply(**about, values=values))
        shown = [self._rendered(replica, table, value) for value in values]
        return respond(request, {**about, "values": shown})

    async def scan(self, request: web.Request) -> web.Response:
        terms = terms_of(request.query, OF_A_SCAN if request.method == "GET" else frozenset())
        page = await page_of(request)
        limit = min(page.limit, query_wire.LIMIT_PAGE_ROWS)
        replica, table = await self._replica(request, terms), _named(request)
        about = _about(replica, table)
        rows, ended = bounded(
            limit,
            lambda got, count: replica.scan(page.prefix, got[-1][0] if got else page.after, count, table),
            size_of_row,
        )
        _still(replica)
        return self._page(request, replica, about, rows, None if ended else rows[-1][0])

    async def windows(self, request: web.Request) -> web.Response:
        terms = terms_of(request.query, OF_WINDOWS if request.method == "GET" else frozenset())
        asked = await windows_of(request)
        replica, table = await self._replica(request, terms), _named(request)
        row, about = replica.processor.row_of(table), _about(replica, table)
        if not holds_windows(row):
            name = table_name(replica.processor, table)
            raise RequestRefused(
                404, "no_such_table", f"table {name} has no windows; read its rows by `get` and `scan`"
            )
        rows, after = page_of_windows(
            lambda prefix, after, count: replica.scan(prefix, after, count, table), asked
        )
        _still(replica)
        return self._page(request, replica, about, rows, after)

    def _page(
        self,
        request: web.Request,
        replica: Replica,
        about: dict[str, Any],
        rows: Sequence[tuple[str, bytes]],
        after: str | None,
    ) -> web.Response:
        if wants_msgpack(request):
            return respond(request, PageReply(**about, rows=[*rows], after=after))
        table = _named(request)
        shown = [[key, self._rendered(replica, table, value)] for key, value in rows]
        return respond(request, {**about, "rows": shown, "after": after})

    def _rendered(self, replica: Replica, table: str, value: bytes | None) -> Any:
        if value is None:
            return None
        processor = replica.processor
        if replica.role == "earlier":
            return render(decode_untyped(value))  # the type of its rows is not known here
        name = table_name(processor, table)
        codec = self._codecs.get(name)
        if codec is None:
            codec = self._codecs[name] = RowCodec(processor.row_of(table))
        return render(codec.decode(value))

    # -- finding the replica

    async def find(self, request: web.Request, terms: QueryTerms) -> Replica:
        """Return the replica that may answer a request of another kind on the same terms; raises Refused."""
        return await self._replica(request, terms)

    async def _replica(self, request: web.Request, terms: QueryTerms) -> Replica:
        """Return the replica that may answer, once it has reached the offset asked for; raises Refused."""
        asked, at = request.match_info["table"], request.match_info["partition"]
        table, processor = asked.partition(".")[0], self._declaring(asked)
        if processor is None:
            raise RequestRefused(
                404,
                "no_such_table",
                f"no table {asked[:100]!r} in application {self._app}; its tables: {self._names()}",
            )
        if processor.stateless:
            raise RequestRefused(
                404, "no_such_table", f"{table} is a stateless step: it has no table, only a position"
            )
        earlier = terms.version is not None and terms.version != processor.version
        if earlier and terms.version != self._serving.earlier_version(table):
            raise RequestRefused(
                404,
                "no_such_table",
                f"table {table} is version {processor.version} here, not {terms.version}; asker and worker"
                " differ",
            )
        partition, partitions = whole(at, "partition"), self._serving.partitions(table)
        if partition >= partitions > 0:
            raise RequestRefused(
                404, "no_such_table", f"table {table} has partitions 0 to {partitions - 1}, not {partition}"
            )
        wanted = wanted_of(processor, terms.at_offset)

        def find() -> Replica:
            if earlier:
                found = self._find_earlier(table, partition)
            else:
                found = self._find(request, table, partition, terms.staleness)
            require_topics(request, f"{table}/{partition}", processor.topics, found)
            return found

        replica = find()
        if wanted is None or has_reached(replica, wanted):
            return replica
        reached = await replica.reached(wanted, terms.timeout_ms / 1000)
        replica = find()  # it may have moved since
        if reached and has_reached(replica, wanted):
            return replica
        reached_to = shown_offsets(replica.applied if isinstance(wanted, int) else replica.offsets)
        raise RequestRefused(
            504,
            "offset_timeout",
            f"{table}/{partition} is at offset {reached_to}, not yet {shown_offsets(wanted)} after"
            f" {terms.timeout_ms} ms; "
            + (replica.stalled or "ask again, or see whether its worker keeps up (kafka_consumergroup_lag)"),
        )

    def _declaring(self, asked: str) -> Processor[Any, Any] | None:
        """Return the processor whose table is asked for, None when no such table is declared."""
        name, dot, named = asked.partition(".")
        processor = self._serving.tables().get(name)
        return None if processor is None or (dot and named not in processor.tables) else processor

    def _declares(self, asked: str) -> bool:
        return self._declaring(asked) is not None

    def _names(self) -> str:
        tables = self._serving.tables()
        names = [table_name(each, table) for each in tables.values() for table in ("", *each.tables)]
        return ", ".join(sorted(names)) or "none"

    def _find_earlier(self, table: str, partition: int) -> Replica:
        """Return the replica of a partition in the earlier version."""
        replica = self._serving.earlier(table, partition)
        if replica is not None and replica.serving:
            return replica
        version = self._serving.earlier_version(table)
        raise RequestRefused(
            503,
            "not_ready",
            f"{table}/{partition} is not kept here in version {version}, or is being restored; ask again",
            retry_after_ms=RETRY_AFTER_MS,
        )

    def _refuse_built(self, table: str, partition: int) -> None:
        """Refuse to read a version that has not caught up."""
        if (why := self._serving.building(table, partition)) is None:
            return
        version = self._serving.earlier_version(table)
        hint = "" if version is None else f"; ask for version={version}, or again later"
        raise RequestRefused(
            503, "not_ready", f"{table}/{partition}: {why}{hint}", retry_after_ms=RETRY_AFTER_MS
        )

    def _find(self, request: web.Request, table: str, partition: int, staleness: Staleness | None) -> Replica:
        replica = self._serving.lookup(table, partition)
        if replica is not None and replica.serving:
            self._refuse_built(table, partition)
            if replica.active:
                return replica
            too_stale = (
                "its owner answers"
                if staleness is None
                else _too_stale(replica, staleness, self._clock.now_ms())
            )
            if too_stale is None:
                return replica
        else:
            too_stale = ""
        owner = self._serving.owner(table, partition)
        if owner is not None and owner != self._url:
            path = request.raw_path if request.raw_path.startswith("/") else str(request.rel_url)
            raise RequestRefused(
                421,
                "moved",
                f"{table}/{partition} is served by {owner}",
                owner=owner,
                headers={"Location": owner + path},
            )
        if replica is None:
            cause = "is not held here and has no known owner: a rebalance is under way"
        elif too_stale:
            cause = f"is a standby here ({too_stale}) and has no known owner: a rebalance is under way"
        else:
            cause = f"is not serving here: {self._serving.unready() or 'it is about to move'}"
        raise RequestRefused(503, "not_ready", f"{table}/{partition} {cause}", retry_after_ms=RETRY_AFTER_MS)


def _named(request: web.Request) -> str:
    """Return the named table that is asked for, "" for a processor's own."""
    return request.match_info["table"].partition(".")[2]


def _about(replica: Replica, table: str) -> dict[str, Any]:
    """Return the fields that every reply has.

    They are taken before the rows are read: rows read after them can only reflect more.
    """
    return {
        "table": table_name(replica.processor, table),
        "version": replica.processor.version,
        "partition": replica.partition,
        "role": replica.role,
        **as_of(replica),
        "stream_ms": replica.stream_ms,
    }


def _release() -> str:
    """Return the version of holdfast that runs here; an empty text if it was not installed as a package."""
    try:
        return metadata.version("holdfast")
    except metadata.PackageNotFoundError:
        return ""


def _still(replica: Replica) -> None:
    """Refuse a result if it may be another owner's by now: a process can be frozen at any point, in the
    middle of a read too.
    """
    if not replica.serving:
        cause = f"{replica.processor.name}/{replica.partition} stopped serving while this was read"
        raise RequestRefused(503, "not_ready", cause, retry_after_ms=RETRY_AFTER_MS)


def _too_stale(replica: Replica, bound: Staleness, now_ms: int) -> str | None:
    """Return why this standby may not answer under *bound*, None when it may.

    An unknown staleness is not fresh.
    """
    if bound.offsets is not None:
        if replica.source_end == UNKNOWN:
            return "how many records it is behind is not known"
        if behind(replica) > bound.offsets:
            return f"{behind(replica)} records behind, {bound.offsets} allowed"
    if bound.ms is not None:
        age_ms = age_bound_ms(replica, now_ms)
        if age_ms is None:
            return "its age is not known"
        if age_ms > bound.ms:
            return f"up to {age_ms} ms old, {bound.ms} allowed"
    return None
