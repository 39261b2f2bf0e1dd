"""How the demo speaks: what it does, when, and what came of it, the same on a terminal and in a log; and its summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.status import Status
from rich.table import Table
from rich.text import Text

from holdfast.clock import Clock, system_clock
from holdfast.errors import DemoError

PLAIN_COLUMNS = 110
"""Width of a line when nobody tells: in a pipe, in a CI log."""

_CLOCK_COLUMNS = 8
HASH_SHOWN = 16


def console_for_people() -> Console:
    """Return a console that keeps words together in a pipe too, and colours nothing by itself."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=PLAIN_COLUMNS)


class Teller:
    """Prints steps under a running clock. On a terminal the last line shows what is being waited for."""

    def __init__(self, console: Console, *, clock: Clock = system_clock) -> None:
        self.console, self._clock = console, clock
        self._began_s = clock.monotonic_s()
        self._status: Status | None = None

    @property
    def elapsed_s(self) -> float:
        return self._clock.monotonic_s() - self._began_s

    def open(self, title: str, *lines: str) -> None:
        """Say what this is about, before the first step."""
        self.console.print()
        self.console.print(Text(title, style="bold"))
        for line in lines:
            self.console.print(Text(line))
        self.console.print()

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Announce a step, and show that it goes on for as long as the block lasts."""
        self._row(Text(f"{self.elapsed_s:6.1f} s", style="dim"), Text(title, style="bold"))
        if not self.console.is_terminal:
            yield
            return
        self._status = self.console.status("", spinner="dots", spinner_style="dim")
        self._status.start()
        try:
            yield
        finally:
            self._status.stop()
            self._status = None

    def say(self, *lines: str) -> None:
        """Print results of the step."""
        for line in lines:
            self._row(Text(""), Text(line))

    def note(self, *lines: str) -> None:
        """Print what explains a result, less loudly."""
        for line in lines:
            self._row(Text(""), Text(line, style="dim"))

    def waiting(self, line: str) -> None:
        """Show what the step waits for; in a log there is no line that could change, so it shows nothing."""
        if self._status is not None:
            self._status.update(Text(f"{' ' * (_CLOCK_COLUMNS - 1)}{line}", style="dim"))

    def close(self, body: RenderableType) -> None:
        """Print the summary."""
        self.console.print()
        self.console.print(body)

    def _row(self, at: Text, line: Text) -> None:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=_CLOCK_COLUMNS, justify="right", no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(at, line)
        self.console.print(grid)


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One way to the state: by which the same log must give the same hash."""

    name: str
    digest: str
    seconds: float
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the demo measured and saw."""

    records: int
    rows: int
    clients: int
    claims: int
    restarts: int
    handovers: int
    refused: int
    live_rate: float
    visible_ms: Sequence[float]
    takeover_s: float
    session_timeout_s: float
    paths: Sequence[Path]
    elapsed_s: float


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest of *values* that at least *share* of them do not exceed.

    >>> [quantile([4.0, 1.0, 3.0, 2.0], share) for share in (0.0, 0.5, 0.51, 1.0)]
    [1.0, 2.0, 3.0, 4.0]
    """
    ordered = sorted(values)
    at = -(-len(ordered) * share // 1)
    return ordered[max(0, int(at) - 1)]


def require_one_hash(paths: Sequence[Path]) -> None:
    """Raise DemoError unless every path led to the same state."""
    if len({path.digest for path in paths}) != 1:
        told = ", ".join(f"{path.name} {path.digest[:HASH_SHOWN]}" for path in paths)
        raise DemoError(f"the same log gave different states: {told}; `holdfast verify claims` names the first row that differs")


def summary(found: Findings, look_next: Sequence[tuple[str, str]]) -> RenderableType:
    """Return the page at the end: what held, in numbers, and where to look next."""
    facts = Table.grid(padding=(0, 3))
    facts.add_column(no_wrap=True, style="dim")
    facts.add_column(overflow="fold")
    facts.add_row("records", Text(f"{found.records:,} folded into {found.rows:,} rows, each exactly once, by two workers"))
    facts.add_row(
        "fleet",
        Text(
            f"{found.clients:,} clients, {found.claims:,} claims, {found.handovers:,} hand-overs, {found.restarts:,} restarts; "
            f"{found.refused:,} heartbeats of replaced instances refused"
        ),
    )
    facts.add_row("rate", Text(f"{found.live_rate:,.0f} records/s live"))
    p50, p99 = quantile(found.visible_ms, 0.5), quantile(found.visible_ms, 0.99)
    facts.add_row("read your writes", Text(f"{p50:.0f} ms from acknowledged to answered (p50), {p99:.0f} ms (p99)"))
    facts.add_row(
        "takeover",
        Text.assemble(
            (f"{found.takeover_s:.1f} s", "bold"),
            f" from SIGKILL to the survivor's answer; {found.session_timeout_s:g} s is the session timeout",
        ),
    )
    one = len({path.digest for path in found.paths}) == 1
    for path in found.paths:
        facts.add_row(
            path.name,
            Text.assemble((path.digest[:HASH_SHOWN], "bold green" if one else "bold red"), f"  {_speed(path)}"),
        )
    verdict = Text("Everything held", style="bold green") if one else Text("The states differ", style="bold red")
    verdict.append(f" in {found.elapsed_s:.0f} s: one log, three paths, one state.", style="not bold default") if one else None
    parts: list[RenderableType] = [Rule(style="dim"), verdict, Text(""), facts]
    if look_next:
        pointers = Table.grid(padding=(0, 3))
        pointers.add_column(no_wrap=True, style="dim")
        pointers.add_column(overflow="fold")
        for what, where in look_next:
            pointers.add_row(what, Text(where))
        parts += [Text(""), Text("Where to look next", style="bold"), Text(""), pointers]
    return Group(Padding(Group(*parts), (0, 0, 1, 0)))


def _speed(path: Path) -> str:
    return f"{path.seconds:.1f} s" + (f", {path.records / path.seconds:,.0f} records/s" if path.records and path.seconds else "")
