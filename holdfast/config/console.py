"""Settings of the console."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.config.section import Section, setting
from holdfast.config.web import is_loopback, token_problem


@dataclass(frozen=True, kw_only=True)
class ConsoleSettings(Section):
    """Section `[console]`: where `holdfast console` listens, and who may look."""

    console_bind: str = setting("127.0.0.1", "address the console listens on")
    console_port: int = setting(6067, "port of the console", low=1, high=65_535)
    console_token: str | None = setting(None, "secret with which people sign in to the console", secret=True)

    console_acting_token: str | None = setting(
        None, "secret of those who may act in the console, not only look", secret=True
    )
    console_audit_topic: str | None = setting(
        None, "topic that says who did what in the console; nobody acts without it"
    )

    console_lake: str | None = setting(
        None, "folder or address of the lake that the console shows, and reads to explain rows"
    )

    def problems(self) -> Iterator[str]:
        for name in ("console_token", "console_acting_token"):
            if (problem := token_problem(getattr(self, name))) is not None:
                yield f"{self.place(name)} {problem}"
        if self.console_acting_token is not None and self.console_audit_topic is None:
            yield (
                f"{self.place('console_acting_token')} lets people act: name the topic that says who did what, "
                "console_audit_topic, and create it"
            )
        if self.console_acting_token is not None and self.console_acting_token == self.console_token:
            yield "console_acting_token and console_token are the same: then everybody who looks may act; choose another"
        if not is_loopback(self.console_bind) and self.console_token is None:
            yield (
                f"{self.place('console_bind')} is {self.console_bind}, which others can reach: "
                "set console_token (best by HOLDFAST_CONSOLE_TOKEN_FILE), or bind to 127.0.0.1"
            )
