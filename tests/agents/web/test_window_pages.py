"""Pages of windows: each window is on one page, and no page looks at more rows than a page may."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agents.web import window_pages
from holdfast.agents.web.window_pages import page_of_windows
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.query_wire import LIMIT_PAGE_ROWS, LIMIT_REPLY_BYTES, WindowsPage
from holdfast.core.streams.windowing.rows import STREAM, WindowRow, row_type, starts_within, window_key
from holdfast.dev.memory_tables import MemoryWorker
from tests.agents.web.test_server import TOTALS, Asking, fold, scenario, settings

Rows = list[tuple[str, bytes]]
VIEWS: Processor[object, object] = Processor(
    name="views", source="clicks", decode=bytes, fold=fold, row=row_type(int), tables={"open": int}
)
TIMES = st.none() | st.integers(0, 12)
KEYS = st.text(st.sampled_from("a@0é\U0001f600"), max_size=3)


class Table:
    """Rows in the order of their keys, and how many were looked at."""

    def __init__(self, rows: Rows) -> None:
        self._rows, self.read_rows, self.read_bytes = sorted(rows, key=lambda row: row[0].encode()), 0, 0

    def scan(self, prefix: str, after: str | None, limit: int) -> Sequence[tuple[str, bytes]]:
        rows = [
            row
            for row in self._rows
            if row[0].startswith(prefix) and (after is None or row[0].encode() > after.encode())
        ][:limit]
        self.read_rows += len(rows)
        self.read_bytes += sum(len(value) for _, value in rows)
        return rows


def pages(table: Table, asked: WindowsPage) -> list[Rows]:
    found, after = [], asked.after
    while True:
        rows, after = page_of_windows(
            table.scan,
            WindowsPage(
                key=asked.key,
                since_ms=asked.since_ms,
                until_ms=asked.until_ms,
                after=after,
                limit=asked.limit,
            ),
        )
        found.append(rows)
        if after is None:
            return found


@pytest.mark.long
@given(
    st.sets(st.tuples(KEYS, st.integers(0, 12)), max_size=40),
    st.none() | KEYS,
    TIMES,
    TIMES,
    st.integers(1, 5),
    st.integers(1, 7),
)
def test_pages_together_are_all_windows_of_the_range(
    windows: set[tuple[str, int]],
    key: str | None,
    since_ms: int | None,
    until_ms: int | None,
    limit: int,
    most: int,
) -> None:
    names = [window_key(of, start_ms) for of, start_ms in windows]
    others = [f"{STREAM}0", "\x00due/0000000000000005/c/a@0000000000000001", "\x00open/a"]
    table = Table([(name, b"row") for name in (*names, *others)])
    asked = WindowsPage(key=key, since_ms=since_ms, until_ms=until_ms, limit=limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_pages, "LIMIT_PAGE_ROWS", most)
        patch.setattr(window_pages, "FIRST_CHUNK", 2)
        found = pages(table, asked)
    assert all(len(page) <= limit for page in found)
    assert [name for page in found for name, _ in page] == sorted(
        (name for name in names if starts_within(name, key, since_ms, until_ms)), key=str.encode
    )


def test_a_page_looks_at_no_more_rows_and_bytes_than_a_page_may() -> None:
    many = Table([(window_key("a", start_ms), b"row") for start_ms in range(3 * LIMIT_PAGE_ROWS)])
    rows, after = page_of_windows(many.scan, WindowsPage(since_ms=10**9))
    assert (rows, after) == ([], window_key("a", LIMIT_PAGE_ROWS - 1))
    assert many.read_rows == LIMIT_PAGE_ROWS
    large = Table([(window_key("a", start_ms), bytes(1 << 20)) for start_ms in range(40)])
    rows, after = page_of_windows(large.scan, WindowsPage(since_ms=10**9))
    assert after is not None
    assert large.read_bytes <= 3 * LIMIT_REPLY_BYTES
    assert len(pages(large, WindowsPage())) >= 5


# -- over HTTP


@scenario
async def test_windows_are_answered_by_time_with_the_offset_they_reflect() -> None:
    async with MemoryWorker(settings(), [VIEWS], partitions=1) as worker, Asking(worker) as asking:
        for key in ("ada", "bob"):
            for start_ms in (0, 1_000, 2_000):
                worker.put(VIEWS, 0, window_key(key, start_ms), WindowRow(7, start_ms + 1_000), offset=41)
        here = "/tables/views/0/windows"
        status, page, _ = await asking.ask(f"{here}?since-ms=1000&until-ms=2000&limit=1")
        assert (status, page["as_of_offset"], page["role"]) == (200, 41, "active")
        ((name, row),) = page["rows"]
        assert (name, row["value"], row["end_ms"], page["after"]) == ("ada@0000000000001000", 7, 2_000, name)
        _, page, _ = await asking.ask(f"{here}?since-ms=1000&until-ms=2000&after={page['after']}")
        assert ([row[0] for row in page["rows"]], page["after"]) == (["bob@0000000000001000"], None)
        _, page, _ = await asking.ask(f"{here}?key=bob&since-ms=1000")
        assert [row[0] for row in page["rows"]] == ["bob@0000000000001000", "bob@0000000000002000"]
        _, page, _ = await asking.ask(here, json.dumps({"since_ms": 2_000, "key": "ada"}).encode())
        assert [row[0] for row in page["rows"]] == ["ada@0000000000002000"]
        assert {verb for _, verb, _ in worker.metrics.queries} == {"windows"}


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("views/0/windows?since-ms=5&until-ms=5", None, 400, "no window can start between them"),
        ("views/0/windows?since-ms=soon", None, 400, "since-ms is 'soon'"),
        ("views/0/windows?since=5", None, 400, "unknown parameter 'since'"),
        ("views/0/windows?since-ms=5&since-ms=6", None, 400, "given twice"),
        ("views/0/windows?limit=0", None, 400, "limit is 0"),
        ("views/0/windows?until-ms=9999999999999999", None, 400, "1000000000000000 at most"),
        ("views/0/windows", b'{"since_ms": 6, "until_ms": 5}', 400, "no window can start between them"),
        ("views/0/windows", b'{"since": 6}', 400, "since"),
        ("views/0/windows", b'{"since_ms": true}', 400, "since_ms"),
        ("views/9/windows", None, 404, "partitions 0 to 0"),
        ("visits/0/windows", None, 404, "no table 'visits'"),
        ("totals/0/windows", None, 404, "table totals has no windows"),
        ("views.open/0/windows", None, 404, "table views.open has no windows"),
    ],
)
@scenario
async def test_what_cannot_be_answered_is_said(path: str, body: bytes | None, status: int, said: str) -> None:
    async with MemoryWorker(settings(), [VIEWS, TOTALS], partitions=1) as worker, Asking(worker) as asking:
        got, refused, _ = await asking.ask(f"/tables/{path}", body)
        assert got == status
        assert said in refused["message"]
        assert refused["error"] == ("malformed" if status == 400 else "no_such_table")


@scenario
async def test_windows_need_the_token_and_a_partition_that_is_served() -> None:
    async with (
        MemoryWorker(settings(web_token="t"), [VIEWS], partitions=1) as worker,
        Asking(worker) as asking,
    ):
        status, refused, _ = await asking.ask("/tables/views/0/windows")
        assert (status, refused["error"]) == (401, "no_token")
    async with MemoryWorker(settings(), [VIEWS], partitions=1) as worker, Asking(worker) as asking:
        worker.replica(VIEWS, 0).serving = False
        status, refused, headers = await asking.ask("/tables/views/0/windows")
        assert (status, refused["error"], headers["Retry-After"]) == (503, "not_ready", "1")
