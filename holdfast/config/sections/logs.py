"""Settings of a process's log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.config.sections.section import Section, setting


@dataclass(frozen=True, kw_only=True)
class LogSettings(Section):
    """The form of log lines."""

    log_format: str = setting(
        "text", "text for people, or json: each log line is one object with named fields"
    )

    def problems(self) -> Iterator[str]:
        yield from self.one_of("log_format", "text", "json")
