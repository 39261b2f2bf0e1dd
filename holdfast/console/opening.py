"""Opens what the pages need, and makes the application that serves them: for a port of their own and for a
worker's alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from holdfast.clients.tables.client import TableClient
from holdfast.clients.tables.directory import Directory, WorkersTopic
from holdfast.config import Settings
from holdfast.console.access import ConsoleAccess
from holdfast.console.acting.acts import ACT_S, Acts
from holdfast.console.asking.child_calls import ChildCalls
from holdfast.console.asking.lake import LIMIT_TOPICS, LakeTopicLine, answer_landed, lake_topics
from holdfast.console.asking.why import Load
from holdfast.console.desk import ConsoleDesk
from holdfast.console.live import LiveStreams
from holdfast.console.openid import OpenIdSignIn
from holdfast.console.place import ConsolePlace
from holdfast.console.views import build_application
from holdfast.console.watching.beside import BesideLook
from holdfast.console.watching.blocking import BlockingCalls
from holdfast.console.watching.findings import Urgency
from holdfast.console.watching.groups import GroupDesk
from holdfast.console.watching.landed import judge_landed
from holdfast.console.watching.outbox import OutboxLooks, OutboxPicture, judge_outbox
from holdfast.console.watching.refused import RefusedCount, RefusedLooks, judge_refused
from holdfast.console.watching.watch import Watch
from holdfast.core.engine.declared.processor import Processor

THREADS = 2
OUTBOX_S, REFUSED_S, LAKE_S = 5.0, 30.0, 300.0
"""The age up to which a look at each is used. A look at the lake reads the history of every table, in a
process of its own.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSources:
    """The sources of the pages. *directory*, with *groups* or without any, and *table_directory* replace
    Kafka in tests.

    *load* loads the application again for folding it; it can be pickled.
    """

    settings: Settings
    processors: tuple[Processor[Any, Any], ...]
    directory: Directory | None = None
    groups: GroupDesk | None = None
    table_directory: Directory | None = None
    load: Load | None = None


async def open_application(
    stack: AsyncExitStack, sources: ConsoleSources, place: ConsolePlace, *, at_once: bool
) -> web.Application:
    """Return the application that serves the pages, until *stack* ends. With *at_once* the first look at the
    workers has ended by then.
    """
    settings, of_kafka = sources.settings, sources.directory is None
    calls, children = BlockingCalls("logs", THREADS), ChildCalls()
    stack.push_async_callback(children.close)
    stack.push_async_callback(calls.close)
    outbox, lake = _outbox(stack, settings), _lake(stack, sources)
    refused = _refused(stack, settings) if of_kafka else None
    groups = GroupDesk(settings) if of_kafka else sources.groups
    watch = Watch(
        settings,
        sources.processors,
        WorkersTopic(settings) if sources.directory is None else sources.directory,
        groups,
        [each for each in (outbox, refused, lake) if each is not None],
        at_once=at_once,
    )
    await stack.enter_async_context(watch)
    tables = TableClient(settings, sources.processors, directory=sources.table_directory)
    await stack.enter_async_context(tables)
    acting = groups if sources.groups is not None else GroupDesk(settings, wait_s=ACT_S)
    if acting is not None and acting is not groups:
        stack.push_async_callback(acting.close)
    desk = ConsoleDesk(
        settings=settings,
        processors=sources.processors,
        watch=watch,
        tables=tables,
        calls=calls,
        acting=acting,
        children=children,
        outbox=outbox,
        lake=lake,
        load=sources.load,
    )
    acts = Acts(desk)
    stack.push_async_callback(acts.close)
    access, openid = ConsoleAccess(settings, place), None
    if settings.console_oidc_issuer is not None:
        openid = await stack.enter_async_context(OpenIdSignIn(settings, place))
    return build_application(desk, access, LiveStreams(desk, access), acts, openid)


def _outbox(stack: AsyncExitStack, settings: Settings) -> BesideLook[OutboxPicture] | None:
    if settings.outbox_database is None:
        return None
    looks, calls = OutboxLooks(settings), BlockingCalls("the outbox")
    stack.push_async_callback(calls.close)
    return BesideLook(
        "outbox",
        "/outbox",
        lambda: calls.run(looks.look),
        judge_outbox,
        every_s=OUTBOX_S,
        urgency=Urgency.CRITICAL,
    )


def _refused(stack: AsyncExitStack, settings: Settings) -> BesideLook[RefusedCount]:
    looks, calls = RefusedLooks(settings), BlockingCalls("the quarantine")
    stack.push_async_callback(calls.close)
    return BesideLook(
        "quarantine",
        "/quarantine",
        lambda: calls.run(looks.look),
        judge_refused,
        every_s=REFUSED_S,
        urgency=Urgency.WARNING,
    )


def _lake(stack: AsyncExitStack, sources: ConsoleSources) -> BesideLook[Sequence[LakeTopicLine]] | None:
    """Return the look at the lake, in processes of its own: other questions do not wait for it."""
    lake, topics = sources.settings.console_lake, lake_topics(sources.processors)[:LIMIT_TOPICS]
    if lake is None or not topics:
        return None
    children = ChildCalls()
    stack.push_async_callback(children.close)
    return BesideLook(
        "lake",
        "/lake",
        lambda: children.run(partial(answer_landed, sources.settings, lake, topics)),
        judge_landed,
        every_s=LAKE_S,
        urgency=Urgency.WARNING,
    )
