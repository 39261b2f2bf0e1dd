"""The demo's output: its steps, their times and results, the same on a terminal and in a log; and its
summary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import wrap

from rich.console import Console
from rich.live import Live
from rich.padding import Padding
from rich.spinner import Spinner
from rich.text import Text

from holdfast.clock import Clock, system_clock
from holdfast.errors import DemoError

PLAIN_COLUMNS = 110
"""The greatest width of a line, and the width when it is unknown: in a pipe, in a CI log."""

LEAST_COLUMNS = 50
INDENT = 10
LABEL_COLUMNS = 19
HASH_SHOWN = 16


def console_for_people() -> Console:
    """Return a console that keeps words together in a pipe too, and colours nothing by itself."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_COLUMNS)


class Teller:
    """Prints steps under a running clock. On a terminal the last line shows the present wait."""

    def __init__(self, console: Console, *, clock: Clock = system_clock) -> None:
        self.console, self._clock = console, clock
        self._began_s = clock.monotonic_s()
        self._spinner: Spinner | None = None

    @property
    def elapsed_s(self) -> float:
        return self._clock.monotonic_s() - self._began_s

    def open(self, title: str, *paragraphs: str) -> None:
        """Say what this is about, before the first step."""
        self.console.print()
        self.console.print(Text(title, style="bold"))
        for paragraph in paragraphs:
            self._print(paragraph, indent=0)
        self.console.print()

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Announce a step, and show that it is under way for as long as the block lasts."""
        self.console.print(Text.assemble((f"{self.elapsed_s:6.1f} s  ", "dim"), (title, "bold")))
        if not self.console.is_terminal:
            yield
            return
        shape = "dots" if self.console.encoding.startswith("utf") else "line"
        self._spinner = Spinner(shape, style="dim")
        # Two columns for the spinner, so that its text is aligned with the text before.
        with Live(Padding(self._spinner, (0, 0, 0, INDENT - 2)), console=self.console, transient=True):
            try:
                yield
            finally:
                self._spinner = None

    def say(self, paragraph: str) -> None:
        """Print a result of the step."""
        self._print(paragraph)

    def note(self, paragraph: str) -> None:
        """Print what explains a result, less loudly."""
        self._print(paragraph, style="dim")

    def show(self, text: str) -> None:
        """Print what a command printed, line by line as it is."""
        for line in text.splitlines():
            self.console.print(Text(f"{'':{INDENT}}{line}".rstrip(), style="dim"), soft_wrap=True)

    def waiting(self, words: str) -> None:
        """Show what the step waits for. A log has no line that could change, so it shows nothing there."""
        if self._spinner is not None:
            self._spinner.update(text=Text(words, style="dim", overflow="ellipsis", no_wrap=True))

    def close(self, page: Sequence[Line]) -> None:
        """Print the summary."""
        self.console.print()
        for line in page:
            if line.label:
                self._print(line.words, indent=LABEL_COLUMNS, label=line.label)
            else:
                self.console.print(Text(line.words, style=line.style), soft_wrap=True)

    def _print(self, paragraph: str, *, indent: int = INDENT, style: str = "", label: str = "") -> None:
        columns = max(LEAST_COLUMNS, min(self.console.width, PLAIN_COLUMNS)) - indent
        for number, words in enumerate(
            wrap(paragraph, columns, break_long_words=False, break_on_hyphens=False)
        ):
            margin = f"{'' if number else label:{indent}}"
            self.console.print(Text.assemble((margin, "dim"), (words, style)), soft_wrap=True)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the summary: a labelled fact, or words alone."""

    label: str = ""
    words: str = ""
    style: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way from the log to the state, *how* in words; all must end at the same hash."""

    name: str
    digest: str
    how: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFindings:
    """Measurements of the claiming services' steps."""

    messages: int
    again: int
    """Messages that were handled twice."""
    takeover_s: float
    bound_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxFindings:
    """Measurements of the outbox's steps."""

    orders: int
    rolled_back: int
    takeover_s: float
    session_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinFindings:
    """Measurements of the join's steps."""

    results: int
    away_s: float
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DayFindings:
    """The measurements of the steps of the day: its backlog was counted again in *seconds*, with a worker
    killed when *read* offsets lay between its step and its windows.
    """

    views: int
    windows: int
    read: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeFindings:
    """Measurements of the upgrade's steps: of *visits* the new version began with *begun*; *pause_s* is the
    longest time without an answer.
    """

    visits: int
    begun: int
    answers: int
    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """All measurements of the demo."""

    records: int
    rows: int
    clients: int
    claims: int
    handovers: int
    restarts: int
    refused: int
    live_rate: float
    visible_s: Sequence[float]
    takeover_s: float
    session_timeout_s: float
    ways: Sequence[Way]
    claimed: ClaimFindings
    joined: JoinFindings
    day: DayFindings
    upgraded: UpgradeFindings
    outbox: OutboxFindings
    elapsed_s: float


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest of *values* that at least *share* of them do not exceed.

    >>> [quantile([4.0, 1.0, 3.0, 2.0], share) for share in (0.0, 0.5, 0.51, 1.0)]
    [1.0, 2.0, 3.0, 4.0]
    """
    return sorted(values)[max(0, math.ceil(len(values) * share) - 1)]


def require_one_hash(ways: Sequence[Way]) -> None:
    """Raise DemoError unless every way led to the same state."""
    if len({way.digest for way in ways}) != 1:
        digests = ", ".join(f"{way.name} {way.digest[:HASH_SHOWN]}" for way in ways)
        raise DemoError(
            f"the same log gave different states: {digests}; with --keep, `holdfast verify claims` names the"
            " first row that differs"
        )


def summary(found: Measurements, pointers: Sequence[tuple[str, str]]) -> list[Line]:
    """Return the page at the end: what held, in numbers, and where to look next.

    What did not hold never gets here.
    """
    require_one_hash(found.ways)
    claimed, outbox = found.claimed, found.outbox
    p50_ms, p99_ms = (1000 * quantile(found.visible_s, share) for share in (0.5, 0.99))
    return [
        Line(words=f"Everything held, in {found.elapsed_s:.0f} s.", style="bold green"),
        Line(),
        Line(
            "records",
            f"{found.records:,} frames became {found.rows:,} rows, exactly once, with one of two workers"
            " killed",
        ),
        Line("rate", f"{found.live_rate:,.0f} frames a second while the fleet was watched"),
        Line(
            "read your writes",
            f"{p50_ms:.0f} ms from Kafka's acknowledgement to the answer (p50), {p99_ms:.0f} ms (p99)",
        ),
        Line(
            "takeover",
            f"{found.takeover_s:.1f} s from SIGKILL to the survivor's answer; the session timeout is"
            f" {found.session_timeout_s:g} s",
        ),
        Line(
            "fleet",
            f"{found.clients:,} clients, {found.claims:,} claims, {found.handovers:,} hand-overs,"
            f" {found.restarts:,} restarts",
        ),
        Line("refused", f"{found.refused:,} heartbeats of instances that had been replaced"),
        Line(
            "join",
            f"{found.joined.results:,} impressions told once, with their click or without, past a SIGKILL;"
            f" folded again from logs and choices: {found.joined.digest[:HASH_SHOWN]}",
        ),
        Line(
            "a day again",
            f"{found.day.windows:,} windows over {found.day.views:,} views, the same from the backlog as"
            f" live, past a SIGKILL, in {found.day.seconds:.1f} s",
        ),
        Line(
            "upgrade",
            f"{found.upgraded.visits:,} visits counted once by a new version of their table, begun with"
            f" {found.upgraded.begun:,} of them from the lake and rolled out worker by worker;"
            f" {found.upgraded.answers:,} answers meanwhile, at most {found.upgraded.pause_s:.1f} s apart",
        ),
        Line(
            "services",
            f"{claimed.messages:,} letters, each handled, {claimed.again:,} of them twice;"
            f" {claimed.takeover_s:.1f} s from SIGKILL to the heirs, {claimed.bound_s:g} s are promised",
        ),
        Line(
            "outbox",
            f"{outbox.orders:,} orders published once and in order, {outbox.rolled_back:,} rolled back and"
            f" never seen; {outbox.takeover_s:.1f} s from SIGKILL to the next harvester's first, the session"
            f" is {outbox.session_s:g} s",
        ),
        Line(),
        Line(words="One log, three ways, one state", style="bold"),
        *(
            Line(way.name, f"{way.digest[:HASH_SHOWN]}   {way.how} in {_span(way.seconds)}")
            for way in found.ways
        ),
        Line(),
        Line(words="Where to look next", style="bold"),
        *(Line(*pointer) for pointer in pointers),
        Line(),
    ]


def _span(seconds: float) -> str:
    """Return a duration in words.

    >>> _span(0.0412), _span(2.35)
    ('41 ms', '2.4 s')
    """
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
