"""Log lines as JSON, and as text that moves no cursor. Every line of ours has a constant template and named
fields. A text formatter shows the whole line; that of JSON keeps the template and the fields apart.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from copy import copy
from datetime import UTC, datetime
from typing import Any

from holdfast.terminal import printable, visible_lines

_OF_EVERY_RECORD = frozenset(logging.makeLogRecord({}).__dict__) | {"asctime", "message", "extra", "data"}
"""The attributes of a record by logging itself, and by mode, Faust's library; the rest was given as
`extra`.
"""
_OF_MODE = re.compile(r"\[\^-*([^\]]*)\]: ")
"""The beginning of lines of mode's services: `[^--App]: Starting...`"""


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object on one line: `time` (UTC), `level`, `logger`, `event`, `message`,
    its fields, and `exception`.

    `event` is the template of the message, before its fields are filled in. All lines of one event have the
    same, so programs can count and search by it.

    >>> record = logging.makeLogRecord({"name": "shop", "levelname": "INFO", "created": 0})
    >>> record.msg, record.args = "topic %(topic)s created", {"topic": "orders"}
    >>> for name, value in json.loads(JsonFormatter().format(record)).items():
    ...     print(f"{name}: {value}")
    time: 1970-01-01T00:00:00.000Z
    level: INFO
    logger: shop
    event: topic %(topic)s created
    message: topic orders created
    topic: orders
    """

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        own: dict[str, object] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "event": _event(record),
            "message": record.getMessage(),
        }
        if record.exc_info:
            own["exception"] = self.formatException(record.exc_info)
        return json.dumps(own | fields_of(record) | own, default=str, skipkeys=True)


def _event(record: logging.LogRecord) -> str:
    """Return the template of a record, without what mode puts before it: how deep its service lies, and the
    service's name.

    >>> _event(logging.makeLogRecord({"msg": "[^---Fetcher]: Stopping..."}))
    'Stopping...'
    """
    return _OF_MODE.sub("", str(record.msg))  # as logging does: a message may be any object


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Return the named fields of a record: the mapping that its text is made with, and those of `extra`."""
    named = record.args if isinstance(record.args, Mapping) else {}
    if (service := _OF_MODE.match(str(record.msg))) is not None:
        named = {**named, "service": service[1]}
    return {**{k: v for k, v in record.__dict__.items() if k not in _OF_EVERY_RECORD}, **named}


class VisibleFormatter(logging.Formatter):
    """Formats a record as *of* does, with invisible characters escaped: in fields, which hold others' keys,
    names and reasons, also the end of a line.
    """

    def __init__(self, of: logging.Formatter) -> None:
        super().__init__()
        self._of = of

    def format(self, record: logging.LogRecord) -> str:
        shown = copy(record)
        if isinstance(shown.msg, str):
            shown.msg = visible_lines(shown.msg)
        if isinstance(shown.args, Mapping):
            shown.args = {name: _visible_field(value) for name, value in shown.args.items()}
        elif shown.args:
            shown.args = tuple(map(_visible_field, shown.args))
        if shown.exc_info and not shown.exc_text:
            shown.exc_text = visible_lines(self._of.formatException(shown.exc_info))
        record.message = record.getMessage()  # as formatters leave it, for others that read it
        return self._of.format(shown)


def _visible_field(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if value is None or isinstance(value, int | float):
        return value
    told = str(value)
    return value if (seen := visible_lines(told)) == told else seen


def use_format(log_format: str) -> None:
    """Have the root logger's handlers write as the setting `log_format` says; with `text` in their own form,
    with invisible characters escaped.
    """
    for handler in logging.getLogger().handlers:
        if log_format == "json":
            handler.setFormatter(JsonFormatter())
        elif not isinstance(handler.formatter, JsonFormatter | VisibleFormatter):
            handler.setFormatter(VisibleFormatter(handler.formatter or logging.Formatter()))
