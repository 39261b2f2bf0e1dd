"""The console in a real Chromium, of real workers on the embedded Kafka: that people can use each page, with
eyes and without, by keyboard, without JavaScript, and that what happens shows.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, ViewportSize, expect
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from holdfast import OutboxWriter, by_key
from holdfast.clients.claims.blocking import BlockingClaimConsumer
from holdfast.console.views import MENU
from holdfast.dev.fixtures import SessionBroker
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.outbox.harvest.harvester import Harvester
from holdfast.outbox.harvest.table.rows import OutboxRows
from holdfast.outbox.schema.migrate import upgrade
from holdfast.outbox.settings import HarvestSettings
from holdfast.pipeline.landing.land import land
from tests.agents.fleet import Fleet, Writer
from tests.console.running import PARTITIONS, RunningConsole, running_fleet
from tests.support.browser import DEADLINE_MS, violations
from tests.support.harness import Worker, wait_for

TOKEN = "s3cret"
GUARDED = [
    word
    for setting in (f"console_token={TOKEN}", "console_acting_token=act", "console_audit_topic=audit")
    for word in ("--set", setting)
]
STILL = (
    "transactions",
    "why",
    "lake",
    "landed",
    "reset",
    "producers",
    "quarantine",
    "refused",
    "log",
    "error",
)
"""Pages that are not live."""
MAIN = ("overview", "worker", "table", "group", "reset", "refused", "error")
"""A page of each kind: live and still, with forms and without, and of an error."""
WELL = "1 to look at"
"""All is well but a record that was refused, and so it stays."""
FAKE_STREAM = (
    "window.EventSource = class { on = {}; constructor() { window.stream = this; } "
    "addEventListener(name, call) { this.on[name] = call; } close() {} }"
)
SESSION_S = 300
"""Long enough for no takeover while a test looks at a worker that was killed, though the machine freezes for
a while.
"""
WIDE, NARROW = ViewportSize(width=1280, height=800), ViewportSize(width=320, height=640)


@dataclass(frozen=True, slots=True)
class System:
    """The system that is looked at."""

    fleet: Fleet
    console: RunningConsole
    guarded: RunningConsole
    workers: tuple[Worker, Worker]
    refused: str
    outbox: str

    def moved(self) -> str:
        """Have a record of partition 0 folded, and return its offset once the console knows it."""
        _, offset = Writer(self.fleet.broker).write(
            self.fleet.processors[0].topics[0], b"mary", key=b"mary", partition=0
        )
        line = re.compile(
            f'<th scope="row" class="number">0</th>((?!<tr>).)*<td class="number">{offset}<', re.DOTALL
        )
        wait_for(
            f"offset {offset} of partition 0",
            lambda: line.search(self.console.get("/tables/view?name=totals")),
            DEADLINE_MS / 1000,
        )
        return str(offset)

    def paths(self) -> dict[str, str]:
        """Return an address of each page."""
        return {
            "overview": "/",
            "workers": "/workers",
            "worker": f"/workers/view?url={self.workers[0].url}",
            "tables": "/tables",
            "table": "/tables/view?name=totals&verb=scan&key=",
            "why": "/tables/why?name=totals&key=ada",
            "lake": "/lake",
            "landed": f"/lake/view?topic={self.refused.partition('/')[0]}",
            "groups": "/groups",
            "group": "/groups/view?kind=claim&name=billing",
            "reset": "/groups/reset?kind=claim&name=billing&where=to-earliest",
            "topology": "/topology",
            "outbox": "/outbox",
            "producers": "/producers",
            "transactions": "/producers/transactions",
            "quarantine": "/quarantine",
            "refused": f"/quarantine/view?name={self.refused}",
            "log": "/log?topic={}&partition={}&offset={}".format(*self.refused.split("/")),
            "error": "/tables/view?name=nothing",
        }


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("console")
    with EmbeddedKafka(seed=21) as kafka:
        broker = SessionBroker(config={"bootstrap.servers": kafka.bootstrap})
        with running_fleet(broker, folder, rated=True) as fleet:
            fleet.environment["HOLDFAST_CONSOLE_ON_WORKERS"] = "true"
            for name in ("SESSION_TIMEOUT_S", "REQUEST_TIMEOUT_S", "REBALANCE_TIMEOUT_S"):
                fleet.environment[f"HOLDFAST_{name}"] = str(SESSION_S)
            workers = fleet.worker().start(), fleet.worker().start()
            lake, outbox = str(folder / "lake"), f"sqlite:///{folder / 'out.db'}"
            harvest_rows(fleet, outbox)
            given = ("--set", f"console_lake={lake}", "--set", f"outbox_database={outbox}")
            console, guarded = (
                RunningConsole(fleet, folder, *given),
                RunningConsole(fleet, folder, *GUARDED),
            )
            try:
                fleet.wait_spread(*workers)
                keys = ("ada", "alan", "grace")
                writer = Writer(broker)
                for key in keys:
                    home = by_key(key, PARTITIONS)
                    writer.write(
                        fleet.processors[0].topics[0], key.encode(), key=key.encode(), partition=home
                    )
                topic = fleet.processors[0].topics[0]
                land(fleet.settings, topic, lake)
                at, offset = writer.write(topic, b"\xff", key=b"bob", partition=0)
                refused = f"{topic}/{at}/{offset}"
                console.wait_shown("/quarantine", refused)
                broker.create_topic(fleet.settings.coordination_topic, partitions=2, exact=True)
                with BlockingClaimConsumer(
                    fleet.settings,
                    topics=[topic],
                    group="billing",
                    client="billing-1",
                    heartbeat_interval_s=1,
                ):
                    console.wait_shown("/groups", "billing", "claim")
                    yield System(fleet, console, guarded, workers, refused, outbox)
            finally:
                console.close()
                guarded.close()


def harvest_rows(fleet: Fleet, url: str) -> None:
    """Have some rows written to an outbox, and published by a harvester that ends then."""
    upgrade(url)
    engine, topic = create_engine(url), f"{fleet.processors[0].topics[0]}-counted"
    with Session(engine) as session, session.begin():
        for key in ("ada", "alan", "grace"):
            OutboxWriter().write(session, topic, key=key, value=b"1")
    engine.dispose()
    harvest = HarvestSettings(database=url, kafka=fleet.settings, name=f"{fleet.settings.app}-outbox")
    with OutboxRows(url) as rows, Harvester(harvest):
        wait_for("rows of an outbox to be published", lambda: rows.count() == 0, DEADLINE_MS / 1000)


class Tab:
    """A page of the console in a browser, with what the browser complained of."""

    def __init__(self, browser: Browser, url: str, *, scripts: bool = True) -> None:
        self.context = browser.new_context(
            base_url=url, color_scheme="light", java_script_enabled=scripts, viewport=WIDE
        )
        self.context.set_default_timeout(DEADLINE_MS)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        expect.set_options(timeout=DEADLINE_MS)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    def open(self, path: str) -> Page:
        self.page.goto(path)
        return self.page


@pytest.fixture
def tab(browser: Browser, system: System) -> Iterator[Tab]:
    found = Tab(browser, system.console.url)
    yield found
    found.context.close()
    assert found.complaints == []


def test_nothing_keeps_people_from_using_a_page(browser: Browser, system: System) -> None:
    found: dict[str, list[str]] = {}
    tab = Tab(browser, system.console.url)
    for name, path in system.paths().items():
        page = tab.open(path)
        if name not in STILL:
            expect(page.locator("#live-state")).to_have_text("Live")
        found[name] = judged(page)
    tab.context.close()
    guarded = Tab(browser, system.guarded.url)
    found["sign in"] = judged(guarded.open("/"))
    guarded.page.get_by_label("Token").fill("wrong")
    guarded.page.get_by_role("button").click()
    expect(guarded.page.locator(".trouble")).to_be_visible()
    found["wrong token"] = judged(guarded.page)
    guarded.page.get_by_label("Token").fill("act")
    guarded.page.get_by_label("Your name").fill("Ada")
    guarded.page.get_by_role("button").click()
    expect(guarded.page.locator("header")).to_contain_text("Ada may act")
    for name in ("group", "reset", "refused"):
        found[f"{name}, acting"] = judged(guarded.open(system.paths()[name]))
        expect(guarded.page.locator("form[action='/act']").first).to_be_visible()
    guarded.context.close()
    assert {name: each for name, each in found.items() if each} == {}
    assert [each for each in tab.complaints if "404" not in each] == []


def judged(page: Page) -> list[str]:
    """Return the obstacles to using a page: in the light, in the dark, where only colours differ, and in a
    narrow window.
    """
    found = violations(page)
    page.emulate_media(color_scheme="dark")
    found += [f"dark: {each}" for each in violations(page, "color-contrast")]
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(NARROW)
    if not page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"):
        found.append("a narrow window hides something")
    page.set_viewport_size(WIDE)
    return found


def test_a_violation_would_be_found(tab: Tab) -> None:
    """A check without findings must be able to find something."""
    page = tab.open("/")
    page.evaluate(
        "document.querySelector('main').insertAdjacentHTML('beforeend', '<img"
        ' src="/assets/icon.svg"><input>\')'
    )
    assert {each.partition(":")[0] for each in violations(page)} == {"image-alt", "label"}


def test_the_menu_and_a_look_up_work_by_keyboard_alone(tab: Tab) -> None:
    page = tab.open("/")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.get_by_role("link", name="Tables", exact=True).focus()
    page.keyboard.press("Enter")
    page.get_by_role("link", name="totals").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Key").focus()
    page.keyboard.type("ada")
    page.keyboard.press("Enter")
    answer = page.get_by_role("region", name="Answer")
    expect(answer).to_contain_text('"count": 1')
    expect(answer).to_contain_text("active")
    assert page.get_by_label("Key").input_value() == "ada"


def test_every_entry_of_the_menu_is_marked_where_one_is(tab: Tab) -> None:
    for name, path in MENU.items():
        page = tab.open(path)
        expect(page.locator("nav [aria-current=page]")).to_have_text(name)
        expect(page.locator("h1")).to_have_text(name)


@pytest.mark.variant
@pytest.mark.parametrize("shown", [True, False], ids=["main", "others"])
def test_pages_can_be_read_without_javascript(browser: Browser, system: System, *, shown: bool) -> None:
    tab = Tab(browser, system.console.url, scripts=False)
    for name, path in system.paths().items():
        if (name in MAIN) is not shown:
            continue
        page = tab.open(path)
        expect(page.locator("h1")).to_be_visible()
        expect(page.locator("#live-toggle")).not_to_be_visible()
        assert page.locator("#live").inner_text().strip()
    # Such a page stays as it was made, and on a busy machine a claim may be renewed a moment late.
    wait_for(
        "a page that tells of nothing but the refused record",
        lambda: WELL in tab.open("/").locator("#live").inner_text(),
        DEADLINE_MS / 1000,
    )
    tab.open("/tables/view?name=totals")
    tab.page.get_by_label("Key").fill("grace")
    tab.page.get_by_role("button", name="Read").click()
    expect(tab.page.locator("#answer")).to_contain_text('"count": 1')
    tab.context.close()


@pytest.mark.variant
def test_the_focus_of_a_reader_outlives_changes_and_updates_can_be_paused(tab: Tab, system: System) -> None:
    page = tab.open("/tables/view?name=totals")
    page.evaluate(
        "window.changes = 0; new MutationObserver(() => { window.changes++;"
        " }).observe(document.getElementById('live'), {childList: true, characterData: true, subtree: true})"
    )
    region = page.get_by_role("region", name="Partitions of totals v1")
    state, offset = page.locator("#live-state"), region.locator("td.number").first
    expect(state).to_have_text("Live")
    region.focus()
    region.evaluate("each => { window.stood = each; }")
    for _ in range(2):
        expect(offset).to_have_text(system.moved())
    assert page.evaluate("window.stood.isConnected"), "a reader by ear is thrown back to the beginning"
    assert page.evaluate("window.changes") >= 2
    expect(region).to_be_focused()

    page.get_by_role("button", name="Pause").click()
    expect(state).to_have_text(re.compile("Paused at .* UTC"))
    seen, told = page.evaluate("window.changes"), system.moved()
    assert page.evaluate("window.changes") == seen
    page.get_by_role("button", name="Go on").click()
    expect(offset).to_have_text(told)

    region.locator("td").first.select_text()
    seen = page.evaluate("window.changes")
    told = system.moved()
    expect(state).to_have_text("Waits while text is selected")
    assert page.evaluate("window.changes") == seen, "it changed below a selection"
    page.evaluate("window.getSelection().removeAllRanges()")
    expect(offset).to_have_text(told)
    expect(state).to_have_text("Live")


def test_the_focused_link_is_never_another_thing(tab: Tab) -> None:
    """Lines move below a reader who uses the keyboard: Enter leads where it would have led before, or
    nowhere.
    """
    tab.page.add_init_script(FAKE_STREAM)
    page = tab.open("/workers")

    def send(*names: str) -> None:
        lines = "".join(f'<tr><th scope="row"><a href="/{name}">{name}</a></th></tr>' for name in names)
        page.evaluate("html => window.stream.on.live({data: html})", f"<table><tbody>{lines}</tbody></table>")

    send("anna", "ben", "carl")
    page.get_by_role("link", name="ben").focus()
    send("zoe", "anna", "ben")
    expect(page.get_by_role("link", name="ben")).to_be_focused()
    send("zoe", "anna")
    expect(page.locator("a:focus")).to_have_count(0)


def test_what_came_last_while_text_was_selected_is_shown_afterwards(tab: Tab) -> None:
    """With a stream that sends nothing more, as that of an application at rest."""
    tab.page.add_init_script(FAKE_STREAM)
    page = tab.open("/workers")
    page.locator("#live td").first.select_text()
    page.evaluate("window.stream.on.live({data: '<p>It was killed.</p>'})")
    expect(page.locator("#live")).not_to_contain_text("It was killed.")
    page.evaluate("window.getSelection().removeAllRanges()")
    expect(page.locator("#live")).to_have_text("It was killed.")


@pytest.mark.variant
def test_a_hidden_page_leaves_its_connection_to_others(tab: Tab, system: System) -> None:
    """More pages of one browser than it opens connections: those that are hidden do not keep a new one from
    loading, and resume once seen.
    """
    hide = """seen => { Object.defineProperty(document, 'visibilityState', {value: seen ? 'visible' : 'hidden', configurable: true});
        document.dispatchEvent(new Event('visibilitychange')); }"""  # noqa: E501
    pages = [tab.context.new_page() for _ in range(6)]
    for page in pages:
        page.goto("/workers")
        expect(page.locator("#live-state")).to_have_text("Live")
    for page in pages:
        page.evaluate(hide, False)
    for page in pages:
        expect(page.locator("#live-state")).to_contain_text("Paused at")
    tab.open("/tables")
    expect(tab.page.locator("#live-state")).to_have_text("Live")
    pages[0].evaluate(hide, True)
    expect(pages[0].locator("#live-state")).to_have_text("Live")


def test_the_flow_along_every_arrow_is_shown(tab: Tab, system: System) -> None:
    page, topic, writer = (
        tab.open("/topology"),
        system.fleet.processors[0].topics[0],
        Writer(system.fleet.broker),
    )
    rates = f"{topic}-rates"

    def flow(kind: str, of: str) -> list[str]:
        row = page.get_by_role("row").filter(has_text=kind).filter(has_text=re.compile(f"{of}[0-9,.–]"))
        return row.locator("td.number").all_inner_texts()

    def all_flow() -> bool:
        writer.write(topic, b"mary", key=b"mary", partition=0)
        writer.write(rates, b"1.5", key=b"usd", partition=0)
        shown = [flow(*each) for each in (("folds", topic), ("reads", rates), ("emits", f"{topic}-counted"))]
        return all(each and each[0] not in ("–", "0.0") for each in shown)

    wait_for(
        "records along every arrow", all_flow, DEADLINE_MS / 1000, lambda: page.locator("#live").inner_text()
    )
    assert flow("emits", f"{topic}-counted")[1] == "does not wait"
    expect(page.locator("svg text.flow")).to_have_count(3)


def test_the_wait_of_rows_of_an_outbox_is_shown(tab: Tab, system: System) -> None:
    harvest_rows(system.fleet, system.outbox)  # the page shows the last minutes alone
    system.console.wait_shown("/outbox", "Latency: how long rows waited")
    latency = tab.open("/outbox").get_by_role("region", name="Latency")
    expect(latency.get_by_role("row").nth(1).locator("td.number").first).to_have_text(re.compile("^[36]$"))
    waited = latency.get_by_role("row").nth(1).locator("td.number").all_inner_texts()[1:]
    assert all(re.fullmatch(r"[0-9.]+ (ms|s|min)", each) for each in waited), waited


@pytest.mark.variant
def test_a_workers_own_port_has_the_same_pages(browser: Browser, system: System) -> None:
    tab = Tab(browser, system.workers[1].url)
    page = tab.open("/console")
    expect(page.locator("#live")).to_contain_text(WELL)
    expect(page.locator("#live-state")).to_have_text("Live")
    assert violations(page) == []
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Tables", exact=True).click()
    page.get_by_role("link", name="totals").click()
    page.get_by_label("Key").fill("ada")
    page.get_by_role("button", name="Read").click()
    expect(page.get_by_role("region", name="Answer")).to_contain_text('"count": 1')
    for name, path in MENU.items():
        page = tab.open(f"/console{path}")
        expect(page.locator("nav [aria-current=page]")).to_have_text(name)
    tab.context.close()
    assert tab.complaints == []


def test_a_page_is_painted_once_it_has_come_and_waits_for_no_other_answer(tab: Tab) -> None:
    page = tab.context.new_page()
    page.route("**/assets/**", lambda route: None)  # none of them is ever answered
    page.goto("/", wait_until="commit")
    wait_for(  # Playwright's own waits repeat by eval, which the page's policy forbids
        "the first paint",
        lambda: bool(page.evaluate("performance.getEntriesByName('first-contentful-paint').length")),
        DEADLINE_MS / 1000,
    )
    expect(page.locator("header")).to_have_css("display", "flex")
    blocking = page.evaluate(
        "performance.getEntriesByType('resource').filter(each => each.renderBlockingStatus ==="
        " 'blocking').map(each => each.name)"
    )
    assert blocking == []
    page.close()


def test_charts_are_drawn(tab: Tab) -> None:
    page = tab.open("/")
    expect(page.locator("#chart-rate canvas")).to_be_visible()
    expect(page.locator("#chart-behind canvas")).to_be_visible()


def test_a_person_signs_in_and_out(browser: Browser, system: System) -> None:
    tab = Tab(browser, system.guarded.url)
    page = tab.open("/workers")
    expect(page).to_have_url(re.compile("/sign-in$"))
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#live")).to_contain_text(WELL)
    expect(page.locator("#live-state")).to_have_text("Live")
    elsewhere = {"Origin": system.guarded.url}
    tab.context.request.post("/sign-out", headers=elsewhere, max_redirects=0)
    expect(page.locator("#live-state")).to_contain_text("Not live: sign in again")
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(re.compile("/sign-in$"))
    page.goto("/")
    expect(page).to_have_url(re.compile("/sign-in$"))
    tab.context.close()
    assert [each for each in tab.complaints if "401" not in each] == []


def test_a_kill_shows_before_anybody_takes_over_and_so_does_the_end_of_the_console(
    browser: Browser, system: System, tmp_path: Path
) -> None:
    """The last of this file: it takes apart what the others look at."""
    tab = Tab(browser, system.console.url)
    page, killed = tab.open("/"), system.workers[0]
    expect(page.locator("#live")).to_contain_text(WELL)
    killed.kill()
    expect(page.locator("#live")).to_contain_text(f"Worker {killed.url} cannot be reached")
    expect(page.locator("#live")).to_contain_text("have an owner that does not answer")
    assert len(system.workers[1].applied()) < PARTITIONS, "others have taken over before it was shown"
    assert violations(page) == []
    system.console.process.send_signal(signal.SIGTERM)
    expect(page.locator("#live-state")).to_contain_text("The console does not answer since")
    expect(page.locator("#live")).to_contain_text(killed.url)
    tab.context.close()
