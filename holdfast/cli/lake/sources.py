"""The part of a processor's history that commands read: the topic, its bronze table, or both as one, and up
to which point.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.lake.lakes import absolute
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.cli.lake.engines import EngineName
    from holdfast.pipeline.replay import ReplayOptions
    from holdfast.pipeline.run import Source
    from holdfast.pipeline.spark.session import SparkOptions


class SourceName(StrEnum):
    """The choices of `--from`."""

    TOPIC = "topic"
    BRONZE = "bronze"
    HISTORY = "history"


SourceOption = Annotated[
    SourceName | None,
    typer.Option(
        "--from",
        help=(
            "Read the topic, the bronze table that `pipeline land` keeps, or one history: the table up to its"
            " end and the topic from there, if they join. Default: history with --lake, else topic."
        ),
    ),
]
UntilOption = Annotated[
    str | None,
    typer.Option(
        "--until",
        help=(
            "Stop after these offsets (0:1500,1:20; of several sources 0:orders:17), or before what was"
            " appended later (2024-05-01T12:00:00Z). Default: the end; in bootstrap, for a processor that"
            " emits, the position of the earlier versions."
        ),
    ),
]
LakeOption = Annotated[str | None, typer.Option("--lake", help="The lake of --from bronze and history.")]


def chosen_source(source: SourceName | None, lake: str | None) -> Source:
    """Return the source to read, by `--from` and `--lake`."""
    if source is not None:
        return source.value
    return "topic" if lake is None else "history"


def history_options(
    engine: EngineName,
    source: SourceName | None,
    lake: str | None,
    until: str | None,
    *,
    state_memory_mb: int,
    spark: SparkOptions,
) -> ReplayOptions:
    """Return the options for reading a history, with the engine; the command adds its own."""
    from holdfast.pipeline.bronze.extent import parse_until
    from holdfast.pipeline.replay import ReplayOptions

    return ReplayOptions(
        engine=engine.value,
        source=chosen_source(source, lake),
        lake=None if lake is None else absolute(lake),
        until=None if until is None else parse_until(until),
        memory_bytes=state_memory_mb << 20,
        spark=spark,
    )


def time_ms(option: str, text: str) -> int:
    """Return the time that *option* names, in ms since the epoch; ConfigError for a position in a log."""
    from holdfast.pipeline.bronze.extent import parse_until

    at_ms = parse_until(text, option).at_ms
    if at_ms is None:
        raise ConfigError(
            f"{option} {text!r}: write a time with its zone (2024-05-01T12:00:00Z), or ms since the epoch"
        )
    return at_ms
