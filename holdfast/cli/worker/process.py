"""One worker of an application, in this process: its arguments are APPLICATION SETTINGS [FAUST ARGUMENTS].

SETTINGS names what the command line has set, with commas between: the application must have been made with
it.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn, TextIO

from holdfast.cli.cures import with_application, without_application
from holdfast.cli.options.application import load_app, load_application
from holdfast.config import Settings, settings_from_environment
from holdfast.errors import ConfigError, HoldfastError
from holdfast.logs import JsonFormatter


def main() -> NoReturn:
    """Run the worker until it is asked to end."""
    place, given, *arguments = sys.argv[1:]
    settings: Settings | None = None
    try:
        settings = settings_from_environment()
        if settings.log_format == "json":
            warnings.showwarning = _warn_as_json
        app: Any = load_app(place or None)
        require_obeyed(app.settings, settings, [name for name in given.split(",") if name])
    except HoldfastError as error:
        _tell(
            [" ".join(str(each).split()) for each in error.args],
            as_json=settings is not None and settings.log_format == "json",
        )
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    app.load_again = partial(load_application, place or None, settings)
    app.worded = partial(with_application, application=place) if place else without_application
    sys.argv = ["holdfast", *arguments]
    app.main()
    sys.exit()


def _tell(lines: Sequence[str], *, as_json: bool) -> None:
    for line in lines:
        print(_as_json("CRITICAL", line) if as_json else f"holdfast: {line}", file=sys.stderr)


def _as_json(level: str, line: str) -> str:
    return JsonFormatter().format(logging.makeLogRecord({"name": __name__, "levelname": level, "msg": line}))


def _warn_as_json(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Show a warning of Python, such as one about a declaration, as a line of the log."""
    print(_as_json("WARNING", f"{filename}:{lineno}: {category.__name__}: {message}"), file=sys.stderr)


def require_obeyed(made_with: Settings, wanted: Settings, given: Sequence[str]) -> None:
    """Raise ConfigError where the application was made with other settings than the command line *given*
    ones.

    >>> require_obeyed(Settings(web_port=7000), Settings(web_port=7000), ["web_port"])
    """
    different = [name for name in given if _value(made_with, name) != _value(wanted, name)]
    if different:
        raise ConfigError(
            "the application has settings of its own, which the command line does not change"
            f" ({', '.join(different)}): in create_app, leave settings out, or pass"
            " settings_from_environment()"
        )


def _value(settings: Settings, name: str) -> object:
    if name.startswith("kafka."):
        return settings.kafka.get(name.removeprefix("kafka."))
    return settings.spark_conf.get(name) if name.startswith("spark.") else getattr(settings, name)
