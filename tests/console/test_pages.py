"""Every page over real sockets, of workers in memory: what it shows, how long it gets, and what it answers to
bad questions.
"""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from holdfast.clients.groups.records import GroupKind
from holdfast.clients.tables.directory import FixedDirectory
from holdfast.config import Settings
from holdfast.console.asking.child_calls import ChildCalls
from holdfast.console.asking.transactions import HangingLine, TransactionsAnswer
from holdfast.console.pages import tables
from holdfast.console.showing.paging import PAGE_LINES
from holdfast.console.views import MENU, PAGES
from holdfast.dev.memory_tables import MemoryWorker
from holdfast.dev.ports import free_ports
from tests.agents.web.test_server import scenario
from tests.console.opened import MadeUpGroups, console_settings, opened
from tests.console.shop import OrderTotal, totals

LIMIT_PAGE_BYTES = 160_000
TOTALS = totals()


def worker_settings(**changes: Any) -> Settings:
    return Settings(**{"app": "shop", "web_port": free_ports(1)[0], **changes})


class Outline(HTMLParser):
    """The headings, tables, links and controls of a page, and its forbidden parts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.rows = self.headings = self.styles = 0
        self.wrong: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        names = dict(attributes)
        self.rows += tag == "tr"
        self.headings += tag == "h1"
        if tag == "a":
            self.links.append(names.get("href") or "")
        inline = [name for name in names if name == "style" or name.startswith("on")]
        foreign = [
            value
            for name in ("src", "href", "action")
            if (value := names.get(name) or "").startswith(("http", "//"))
        ]
        self.styles += tag == "style"
        if inline or foreign or self.styles > 1 or (tag == "script" and "src" not in names):
            self.wrong.append(f"<{tag} {attributes}>")


def paths(worker: MemoryWorker) -> list[str]:
    return [
        "/",
        "/workers",
        f"/workers/view?url={worker.url}",
        "/tables",
        "/tables/view?name=totals",
        "/groups",
        "/groups/view?kind=claim&name=billing",
        "/topology",
        "/outbox",
        "/producers",
        "/log",
        "/lake",
        "/tables/why?name=totals",
    ]


@scenario
async def test_a_thousand_partitions_and_ten_thousand_claims_fit_on_pages() -> None:
    settings = worker_settings()
    async with MemoryWorker(settings, [TOTALS], partitions=1_000) as worker:
        groups = MadeUpGroups(console_settings(), 10_000)
        async with opened(console_settings(), worker.directory(), groups) as browsing:
            for path in paths(worker):
                status, text = await browsing.get(path)
                seen = Outline(text)
                assert (status, seen.headings, seen.wrong) == (200, 1, []), path
                assert len(text) < LIMIT_PAGE_BYTES, path
                assert seen.rows <= PAGE_LINES + 1, path
            _, text = await browsing.get("/")
            assert '>1,000 <span class="of">of 1,000</span>' in text
            _, first = await browsing.get("/tables/view?name=totals")
            assert "1 to 50 of 1,000 partitions" in first
            _, last = await browsing.get("/groups/view?kind=claim&name=billing&page=200")
            assert "9,951 to 10,000 of 10,000 partitions" in last
            assert {*groups.asked} == {
                PAGE_LINES
            }  # Kafka is asked for the ends of the shown partitions, and of nothing else


@pytest.mark.long
@scenario
async def test_pages_lead_to_their_neighbours_and_the_last_is_the_end() -> None:
    async with (
        MemoryWorker(worker_settings(), [TOTALS], partitions=250) as worker,
        opened(console_settings(), worker.directory()) as browsing,
    ):
        seen: list[str] = []
        path: str | None = "/tables/view?name=totals"
        while path is not None:
            _, text = await browsing.get(path)
            seen += re.findall(r'<th scope="row" class="number">(\d+)</th>', text)
            found = re.search(r'<a rel="next" href="([^"]*)"', text)
            path = None if found is None else found[1].replace("&amp;", "&")
        assert seen == [str(each) for each in range(250)]
        status, text = await browsing.get("/tables/view?name=totals&page=999")
        assert (status, "201 to 250 of 250" in text) == (200, True)


@scenario
async def test_rows_are_found_with_the_offset_they_reflect() -> None:
    async with (
        MemoryWorker(worker_settings(web_token="t"), [TOTALS], partitions=1) as worker,
        opened(console_settings(web_token="t"), worker.directory()) as browsing,
    ):
        worker.put(TOTALS, 0, "<ada>", OrderTotal(3), offset=41)
        worker.put(TOTALS, 0, "alan", OrderTotal(1), offset=42)
        _, text = await browsing.get("/tables/view?name=totals&verb=get&key=%3Cada%3E")
        assert "<code>&lt;ada&gt;</code>" in text
        assert "&#34;count&#34;: 3" in text
        assert "/tables/why?name=totals&amp;of=&amp;key=%3Cada%3E&amp;at=0%3A42" in text
        assert '<td class="number">42</td>' in text
        _, text = await browsing.get("/tables/view?name=totals&verb=get&key=nobody")
        assert "no such row" in text
        _, text = await browsing.get("/tables/view?name=totals&verb=scan&key=a")
        assert ("alan" in text, "&lt;ada&gt;" in text) == (True, False)
        _, text = await browsing.get("/tables/view?name=totals&verb=windows&key=a")
        assert "has no windows" in text


@scenario
async def test_a_long_scan_shows_its_beginning_and_says_so() -> None:
    async with (
        MemoryWorker(worker_settings(), [TOTALS], partitions=1) as worker,
        opened(console_settings(), worker.directory()) as browsing,
    ):
        for number in range(150):
            worker.put(TOTALS, 0, f"key-{number:03d}", OrderTotal(number), offset=number)
        _, text = await browsing.get("/tables/view?name=totals&verb=scan&key=")
        assert ("key-049" in text, "key-050" in text) == (True, False)
        assert "the first 50, there are more" in text


@pytest.mark.long
@scenario
async def test_a_table_that_is_not_served_is_reported_without_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tables, "TIMEOUT_S", 1.0)
    async with opened(console_settings(), FixedDirectory()) as browsing:
        status, text = await browsing.get("/")
        assert (status, "No worker of shop runs" in text) == (200, True)
        _, text = await browsing.get("/tables/view?name=totals&verb=get&key=a&partition=0")
        assert "<strong>No answer:</strong>" in text


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/nowhere", 404, "Not Found"),
        ("/tables/view?name=%3Cb%3E", 404, "has no table &lt;b&gt;"),
        ("/tables/view?name=totals&version=9", 404, "has no table totals"),
        ("/tables/view?name=totals&version=x", 400, "version is"),
        ("/tables/view?name=totals&verb=drop", 400, "verb is"),
        ("/tables/view?name=totals&verb=get&partition=-1", 400, "partition is"),
        ("/tables/view?name=totals&verb=windows&since=yesterday", 400, "since:"),
        ("/tables/view?name=totals&verb=get&key=a&partition=1", 400, "this table has 1 partitions"),
        ("/workers/view?url=http://x", 404, "No worker http://x"),
        ("/workers?page=99999999999999999999", 400, "page is"),
        ("/groups/view?kind=claims&name=x", 400, "kind is"),
        ("/groups/view", 400, "kind is"),
        ("/tables/why?name=nothing&key=a", 404, "has no table nothing"),
        ("/tables/why?name=totals&key=a", 200, "This console cannot load the application again"),
        ("/lake/view?topic=nothing", 404, "folds no topic nothing"),
        ("/lake/view?topic=orders", 404, "No lake is named"),
        ("/groups/reset?kind=x&name=billing", 400, "kind is"),
        ("/groups/reset?kind=claim&name=billing&where=away", 400, "where is"),
        ("/groups/reset?kind=claim&name=billing&where=to-offset&value=-1", 400, "value is"),
        ("/groups/reset?kind=claim&name=billing&where=shift-by&value=1e3", 400, "value is"),
        ("/groups/reset?kind=claim&name=billing&where=to-datetime&value=noon", 400, "value:"),
        ("/groups/reset?kind=claim&name=billing&where=by-duration&value=soon", 400, "value:"),
        ("/groups/reset?kind=claim&name=billing&where=to-latest&topics=a:b", 400, "topics: a:b"),
        ("/log?topic=orders&partition=99999999999&offset=1", 400, "no topic has so many"),
        ("/log?topic=orders&partition=0&offset=1e3", 400, "offset is"),
        ("/assets/..%2fserver.py", 404, "There is no asset"),
        ("/assets/secret", 404, "There is no asset"),
    ],
)
def test_bad_questions_are_answered_in_words(path: str, status: int, said: str) -> None:
    @scenario
    async def run() -> None:
        async with (
            MemoryWorker(worker_settings(), [TOTALS], partitions=1) as worker,
            opened(console_settings(), worker.directory(), MadeUpGroups(console_settings(), 3)) as browsing,
        ):
            found, text = await browsing.get(path)
            assert (found, said in text) == (status, True), text

    run()


@scenario
async def test_owners_are_remembered_as_they_change() -> None:
    groups = MadeUpGroups(console_settings(), 3)
    billing = (GroupKind.CLAIM, "billing")
    path = "/groups/view?kind=claim&name=billing"
    async with opened(console_settings(), FixedDirectory(), groups) as browsing:
        for owner in ("anna", "<b>ben"):
            groups.owners = {billing: {("orders", 0): owner}}
            await groups.look()
        _, text = await browsing.get(path)
        assert '<td>orders</td><td class="number">0</td><td>anna</td><td>&lt;b&gt;ben</td>' in text
        groups.owners = {billing: {}}
        await groups.look()
        assert "<td>&lt;b&gt;ben</td><td>nobody</td>" in (await browsing.get(path))[1]
        groups.owners = {}
        await groups.look()
        assert "Ownership over time" not in (await browsing.get(path))[1], "of a group that is gone"


def test_transactions_that_hang_are_shown_with_their_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = HangingLine(
        topic="orders",
        partition=3,
        offset=17,
        producer_id=9,
        epoch=2,
        transactional_id="<b>shop</b>",
        decided="commit",
        decided_ms=1_700_000_000_000,
    )
    unknown = replace(hanging, offset=18, transactional_id=None, decided=None, decided_ms=None)

    async def answer(self: ChildCalls, work: object) -> TransactionsAnswer:
        return TransactionsAnswer(ids=[], total=0, hanging=[hanging, unknown])

    monkeypatch.setattr(ChildCalls, "run", answer)

    @scenario
    async def run() -> None:
        async with opened(console_settings(), FixedDirectory()) as browsing:
            _, text = await browsing.get("/producers/transactions")
            assert "/log?topic=orders&amp;partition=3&amp;offset=17" in text
            assert "<td>&lt;b&gt;shop&lt;/b&gt;</td>" in text
            assert "<td>commit, 2023-11-14 22:13:20.000</td>" in text
            assert "<td>not known</td>" in text

    run()


@scenario
async def test_every_page_is_reachable_from_the_menu_and_every_link_leads_somewhere() -> None:
    assert {page.menu for page in PAGES} == set(MENU)
    groups = MadeUpGroups(console_settings(), 3)
    async with (
        MemoryWorker(worker_settings(), [TOTALS], partitions=3, standby=[2], active=[0, 1]) as worker,
        opened(console_settings(), worker.directory(), groups) as browsing,
    ):
        left, seen = (
            ["/"],
            {"/quarantine", "/producers/transactions"},
        )  # which ask Kafka: test_running.py has them
        while left:
            path = left.pop()
            seen.add(path)
            status, text = await browsing.get(path)
            assert status == 200, path
            left += [each for each in Outline(text).links if each.startswith("/") and each not in seen]
        found = {each.partition("?")[0] for each in seen}
        assert {page.path for page in PAGES} - found == {"/quarantine/view", "/lake/view", "/tables/why"}
