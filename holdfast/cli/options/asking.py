"""Options of commands that ask workers for rows."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.core.engine.query_wire import Staleness
from holdfast.errors import ConfigError

TIMEOUT_S = 10.0

TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.1, max=600, help="Longest wait for a reply, in seconds.")
]
StaleOk = Annotated[
    str | None,
    typer.Option(
        "--stale-ok",
        metavar="BOUND",
        help="Let a standby answer if it is at most this far behind: 250ms, or 100 records.",
    ),
]


def staleness(text: str | None) -> Staleness | None:
    """Return the bound that *text* names; ConfigError for an invalid one."""
    try:
        return None if text is None else Staleness.parse(text)
    except ValueError as error:
        raise ConfigError(f"--stale-ok: {error}") from None
