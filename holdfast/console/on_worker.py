"""The console below ROOT of a worker's web port."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

from aiohttp import web

from holdfast.config import Settings
from holdfast.console.asking.why import Load
from holdfast.console.opening import ConsoleSources, open_application
from holdfast.console.place import worker_place
from holdfast.console.showing.rendering import prepare
from holdfast.core.engine.declared.processor import Processor


async def open_on_worker(
    stack: AsyncExitStack, settings: Settings, processors: Iterable[Processor[Any, Any]], load: Load | None
) -> web.Application:
    """Return the application that serves the pages, until *stack* ends. The call waits for nothing: Kafka may
    be away while a worker starts.

    Without *load*, *why* has no answer: its partition is folded in a process that loads the application
    again.
    """
    sources = ConsoleSources(settings=settings, processors=tuple(processors), load=load)
    application = await open_application(stack, sources, worker_place(settings), at_once=False)
    await asyncio.to_thread(prepare)  # templates are compiled in a thread, off the event loop
    return application
