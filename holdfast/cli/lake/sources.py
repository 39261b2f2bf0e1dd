"""Where commands read a processor's history: the topic, its bronze table, or both as one."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from holdfast.pipeline.replay import Source


class SourceName(StrEnum):
    """What `--from` offers."""

    TOPIC = "topic"
    BRONZE = "bronze"
    HISTORY = "history"


SourceOption = Annotated[
    SourceName | None,
    typer.Option(
        "--from",
        help="Read the topic, the bronze table that `pipeline land` keeps, or one history: the table up to its end and the topic from there, if "
        "they join. Default: history with --lake, else topic.",
    ),
]
LakeOption = Annotated[str | None, typer.Option("--lake", help="The lake of --from bronze and history.")]


def chosen_source(source: SourceName | None, lake: str | None) -> Source:
    """Return where to read, as `--from` and `--lake` tell."""
    if source is not None:
        return source.value
    return "topic" if lake is None else "history"
