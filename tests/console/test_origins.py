"""The console shows event time: the origins that windows wait for, and why records were late."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer
from playwright.sync_api import Browser, Page

from holdfast.config import Settings
from holdfast.console.server import Console
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.origins import UNHEARD, Mark, mark_headers, record_header
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.dev.ports import free_ports
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.tables.held_origins import HeldOrigin
from tests.console.opened import console_settings
from tests.console.test_browser import judged
from tests.support.held_app import Look, behind_step
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

HOUR = 3_600_000


@dataclass
class HeldShop:
    """An application as a process of the console's loads it again."""

    settings: Settings

    @property
    def processors(self) -> list[Processor[Any, Any]]:
        return behind_step("shop")

    def processor(self, name: str) -> Processor[Any, Any]:
        return next(each for each in self.processors if each.name == name)


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give the address of a console of a worker whose windows wait for an origin, and where records were
    late.
    """
    monkeypatch.syspath_prepend(str(ROOT))  # where the console's processes find this file
    with EmbeddedKafka(seed=47) as kafka:
        kafka_of = {name: str(value) for name, value in kafka.client_config().items()}
        settings = console_settings(kafka=kafka_of)
        _, hours = behind_step("shop")
        topic = kafka.create_topic(hours.topics[0])
        producer = Producer(kafka.client_config())
        for at_ms, before_ms in ((12 * HOUR, UNHEARD), (14 * HOUR, 12 * HOUR), (9 * HOUR, 14 * HOUR)):
            value = msgspec.json.encode(Look("home", at_ms))
            header = record_header(0, before_ms, max(at_ms, before_ms))
            producer.produce(topic, value, b"home", 0, headers=[header])
        producer.produce(topic, None, None, 0, headers=[*mark_headers(Mark(0, 14 * HOUR, False, 1))])
        assert producer.flush(DEADLINE_S) == 0
        started, found = threading.Event(), list[tuple[str, asyncio.AbstractEventLoop, asyncio.Event]]()

        async def serve() -> None:
            async with AsyncExitStack() as stack:
                web = Settings(app="shop", web_port=free_ports(1)[0])
                worker = await stack.enter_async_context(MemoryWorker(web, behind_step("shop"), partitions=2))
                worker.replicas["hours", 0].held_back = [HeldOrigin(topic, "3", 7_200.0, 300.0)]
                worker.replicas["hours", 1].held_back = [HeldOrigin(topic, "unheard", math.inf, 2.0)]
                directory = worker.directory()
                made = Console(
                    settings,
                    behind_step("shop"),
                    directory=directory,
                    table_directory=directory,
                    load=partial(HeldShop, settings),
                )
                url, stop = (await stack.enter_async_context(made)).url.rstrip("/"), asyncio.Event()
                found.append((url, asyncio.get_running_loop(), stop))
                started.set()
                await stop.wait()

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        try:
            assert started.wait(DEADLINE_S)
            yield found[0][0]
        finally:
            for _, loop, stop in found:
                loop.call_soon_threadsafe(stop.set)
            thread.join()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


def test_a_person_sees_for_which_origin_windows_wait_and_why_a_record_was_late(
    console: str, page: Page
) -> None:
    page.goto(f"{console}/tables/view?name=hours")
    rows = page.get_by_role("region", name="Partitions of hours v1").locator("tbody tr")
    assert "waits for shop-looks-3, 2.0 h behind, for 5.0 min" in rows.nth(0).inner_text()
    assert "waits for a partition of shop-looks that has said nothing, for 2.0 s" in rows.nth(1).inner_text()
    assert judged(page) == []

    page.goto(f"{console}/")
    told = page.locator("main").inner_text()
    assert "1 of 2 partitions of hours v1 (0) wait for shop-looks-3" in told
    assert "has said nothing" not in told, "for two seconds"

    page.goto(f"{console}/tables/why?name=hours")
    page.get_by_role("button", name="Why was it late?").click()
    late = page.get_by_role("region", name="Late records")
    late.or_(page.locator(".trouble")).wait_for(timeout=DEADLINE_S * 1_000)
    text = late.inner_text()
    for each in (
        "the newest first: 1 of 1",
        "shop-by.v1/0/2",
        "shop-looks-0 was at 1970-01-01T14:00:00Z before it; its window ends at 1970-01-01T10:00:00Z",
        "is over from 1970-01-01T10:05:00Z on (grace 300 s)",
    ):
        assert each in text
    assert judged(page) == []
    page.get_by_role("textbox", name="Late record").fill("shop-by.v1/0/1")
    page.get_by_role("button", name="Why was it late?").click()
    page.get_by_text("What became of the record").wait_for(timeout=DEADLINE_S * 1_000)
    assert "in time: shop-looks-0 was at 1970-01-01T12:00:00Z before it" in late.inner_text()
    answer = page.goto(f"{console}/tables/why?name=hours&late=&record=nowhere")
    assert answer is not None
    assert answer.status == 400
