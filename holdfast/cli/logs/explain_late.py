"""`holdfast explain PROCESSOR --late`, and `explain TOPIC PARTITION OFFSET --for PROCESSOR`: late records."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import typer

from holdfast.cli.lake.engines import EngineName, spark_options
from holdfast.cli.lake.lakes import absolute
from holdfast.cli.lake.progress import shown_progress
from holdfast.cli.logs.explain_row import until_of
from holdfast.cli.options.application import load_application
from holdfast.cli.options.context import globals_of, output_of
from holdfast.cli.output import Cell, Output, note, show, show_json
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.pipeline.histories.late import WhyLate
    from holdfast.pipeline.replay import ReplayOptions
    from holdfast.pipeline.run import Source

COLUMNS = (
    "topic",
    "partition",
    "offset",
    "outcome",
    "key",
    "time",
    "origin",
    "watermark",
    "window_end",
    "over",
)
FACTS = (
    *COLUMNS[:7],
    "watermark",
    "stream_time",
    "window_start",
    "window_end",
    "grace_ms",
    "reach_ms",
    "over",
)


class AskedLate(NamedTuple):
    """The arguments of the command for late records; *place* None asks for the last ones of a processor."""

    processor: str
    place: tuple[str, int, int] | None
    at: str | None
    limit: int
    engine: EngineName
    source: Source
    lake: str | None
    allow_holes: bool

    def replay(self, context: typer.Context) -> ReplayOptions:
        from holdfast.pipeline.replay import ReplayOptions

        return ReplayOptions(
            engine=self.engine.value,
            source=self.source,
            lake=None if self.lake is None else absolute(self.lake),
            allow_holes=self.allow_holes,
            spark=spark_options(globals_of(context).settings(), None, None, None),
        )


def explain_late(context: typer.Context, asked: AskedLate) -> None:
    """Show why one record was late, or which ones of a processor were."""
    from holdfast.pipeline.histories.late import LateOptions, RecordPlace, late_records, why_late

    chosen, output = globals_of(context), output_of(context)
    application = load_application(chosen.application, chosen.settings())
    of, settings, replay = application.processor(asked.processor), application.settings, asked.replay(context)
    if asked.place is not None:
        with shown_progress():
            place = RecordPlace(*asked.place)
            _show_one(why_late(application.processors, of.name, settings, place, replay), output)
        return
    at = None if asked.at is None else until_of(asked.at)
    if isinstance(at, int):
        raise ConfigError(f"--at {at}: write PARTITION:OFFSET, of several sources PARTITION:TOPIC:OFFSET")
    with shown_progress():
        options = LateOptions(replay=replay, limit=asked.limit)
        found = late_records(application.processors, of.name, settings, at, options)
    if output is Output.JSON:
        show_json(
            {
                "processor": found.processor,
                "version": found.version,
                "engine": found.engine,
                "applied": {str(at): offset for at, offset in found.applied.items()},
                "late": {str(at): total for at, total in found.totals.items()},
                "records": [_cells(each) for each in found.records],
            }
        )
        return
    show([_cells(each) for each in found.records], COLUMNS, output)
    for each in found.records:
        note(f"{each.topic}/{each.partition}/{each.offset}: {each.why}")
    total = sum(found.totals.values())
    told = "no record" if not total else "1 record" if total == 1 else f"{total} records"
    more = total - len(found.records)
    note(
        f"{told} of {found.processor} v{found.version} {'was' if total < 2 else 'were'} late"
        + (f"; {more} earlier ones are not shown (--changes)" if more else "")
    )


def _show_one(found: WhyLate, output: Output) -> None:
    cells = _cells(found)
    if output is Output.JSON:
        show_json(cells)
        return
    lines: list[dict[str, Cell]] = [
        {"name": name.replace("_", "-"), "value": cells[name]} for name in FACTS if cells[name] is not None
    ]
    show(lines, ("name", "value"), output)
    note(found.why)


def _cells(found: WhyLate) -> dict[str, Cell]:
    from holdfast.pipeline.histories.late import clock

    def moment(at_ms: int | None) -> str | None:
        return None if at_ms is None else clock(at_ms)

    is_window = found.reach_ms == 0
    return {
        "topic": found.topic,
        "partition": found.partition,
        "offset": found.offset,
        "outcome": found.outcome,
        "why": found.why,
        "key": found.key,
        "time": moment(found.time_ms),
        "origin": found.origin,
        "watermark": moment(found.watermark_ms),
        "stream_time": moment(found.stream_ms),
        "window_start": moment(found.start_ms) if is_window else None,
        "window_end": moment(found.end_ms) if is_window else None,
        "grace_ms": found.grace_ms,
        "reach_ms": found.reach_ms or None,
        "late_from": moment(found.late_from_ms),
        "over": moment(found.over_from_ms),
        "let_go": moment(found.let_go_ms),
    }
