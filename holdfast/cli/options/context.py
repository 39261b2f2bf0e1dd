"""The options before the command. Every command gets its settings and its output format from here."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import typer

from holdfast.cli.output import Output
from holdfast.config import Settings, load_settings
from holdfast.config.sources import DEFAULT_FILE, find_file
from holdfast.errors import ConfigError
from holdfast.logs import use_format

LAST_OFFSET, LAST_PARTITION = 2**63 - 1, 2**31 - 1
"""The largest that Kafka's protocol can name."""


@dataclass(slots=True, kw_only=True)
class Globals:
    """The options that hold for every command."""

    config: Path | None = None
    flags: dict[str, object] = field(default_factory=dict)
    application: str | None = None
    output: Output = Output.TABLE
    verbose: int = 0
    _settings: Settings | None = None

    def without_file(self) -> str | None:
        """Return the hint for a broker that does not answer at the default address; None where an address was
        given.
        """
        read = self._settings
        if read is None or read.origin("kafka.bootstrap.servers") != "default":
            return None
        if find_file(self.config, os.environ, Path.cwd()) is not None:
            return None
        above = next((each for each in Path.cwd().parents if (each / DEFAULT_FILE).is_file()), None)
        cure = (
            f"there is one in {above}: start there" if above else "start where it is, or name it by --config"
        )
        return f"{read.bootstrap_servers} is the default: no {DEFAULT_FILE} is in {Path.cwd()}; {cure}"

    def settings(self) -> Settings:
        """Return the settings, read once; ConfigError when they do not hold together."""
        if self._settings is None:
            self._settings = load_settings(
                flags=self.flags, env=os.environ, file=find_file(self.config, os.environ, Path.cwd())
            )
            use_format(self._settings.log_format)
        return self._settings


def globals_of(context: typer.Context) -> Globals:
    """Return the options that were given before (or among) the command's own."""
    found = context.find_root().obj
    assert isinstance(found, Globals)
    return found


def settings_of(context: typer.Context) -> Settings:
    """Return the settings of this command line."""
    return globals_of(context).settings()


def output_of(context: typer.Context) -> Output:
    """Return the form of output asked for."""
    return globals_of(context).output


def read_assignments(assignments: list[str]) -> dict[str, object]:
    """Read the `--set NAME=VALUE` options.

    >>> read_assignments(["web_port=7000", "kafka.sasl.password=a=b"])
    {'web_port': '7000', 'kafka.sasl.password': 'a=b'}
    """
    flags: dict[str, object] = {}
    for assignment in assignments:
        name, sign, value = assignment.partition("=")
        if not sign or not name.strip():
            raise ConfigError(
                f"--set {name}: write NAME=VALUE, for example --set web_port=7000 or --set"
                " kafka.security.protocol=SSL"
            )
        flags[name.strip()] = value
    return flags
