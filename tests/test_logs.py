"""Log lines: each has a constant text and named fields, and shows them as people and as programs read."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import subprocess
import sys
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

from holdfast.cli.options.context import Globals
from holdfast.config import Settings
from holdfast.dev.ports import free_ports
from holdfast.errors import ConfigError
from holdfast.logs import JsonFormatter, use_format
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

ROOMS = ("holdfast", "agents", "tables", "outbox", "pipeline")
LEVELS = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
LOGGERS = ("logger", "_logger", "log")
HANDED_ON = frozenset({"holdfast/kafka/librdkafka_log.py"})
"""The lines written there are a Kafka client's own."""


@cache
def log_calls(source: str) -> tuple[tuple[ast.Call, list[ast.expr]], ...]:
    """Return the calls of a logger in *source*, each with its text and what follows that."""
    if not re.search(rf"\b({'|'.join(LOGGERS)})\b", source):
        return ()
    return tuple(
        (node, node.args[1:] if node.func.attr == "log" else node.args)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in LEVELS | {"log"}
        and ast.unparse(node.func.value).rpartition(".")[2] in LOGGERS
    )


def nameless(source: str) -> list[str]:
    """Return the calls whose line has parts without a name: those not given as one mapping, or missing
    there.
    """
    found = []
    for call, (text, *fields) in log_calls(source):
        names = set(re.findall(r"%\((\w+)\)", ast.unparse(text)))
        match fields:
            case []:
                named = not names
            case [ast.Dict(keys=keys)]:
                named = names <= {key.value for key in keys if isinstance(key, ast.Constant)} or None in keys
            case [ast.Name()]:
                named = True
            case _:
                named = False
        made = any(isinstance(each, ast.FormattedValue) for each in ast.walk(text))
        if made or not named or re.search(r"%[^(%]", ast.unparse(text).replace("%%", "")):
            found.append(f"line {call.lineno}: {ast.unparse(call)}")
    return found


@pytest.mark.long
def test_every_part_of_a_log_line_has_a_name() -> None:
    found, count = [], 0
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            name = str(path.relative_to(ROOT))
            count += len(log_calls(path.read_text()))
            if name not in HANDED_ON and not any(each.is_symlink() for each in path.parents):
                found += [f"{name} {each}" for each in nameless(path.read_text())]
    assert found == []
    assert count > 90


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ('logger.info("topic %(topic)s created", {"topic": name})', 0),
        ('logger.exception("fetching has ended")', 0),
        ('logger.log(level, "done: %(why)s", fields)', 0),
        ('logger.info("topic %(topic)s created", {"name": name})', 1),
        ('logger.info("topic %(topic)s created")', 1),
        ('logger.info("topic %s created", name)', 1),
        ('logger.log(level, "done: %s", why)', 1),
        ('logger.info(f"topic {name} created", *rest)', 1),
        ('logger.info(f"topic {name} created")', 1),
        ('self._logger.warning("topic %s: %d", name, 3)', 1),
    ],
)
def test_a_part_without_a_name_is_found(line: str, count: int) -> None:
    assert len(nameless(line)) == count


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> StringIO:
    """Return the stream that the root logger's only handler writes to."""
    stream, root = StringIO(), logging.getLogger()
    handler = logging.StreamHandler(stream)
    monkeypatch.setattr(root, "handlers", [handler])
    return stream


def tell() -> None:
    logger = logging.getLogger("holdfast.test")
    logger.warning("topic %(topic)s: %(error)s", {"topic": "orders", "error": ConfigError("no\nway")})
    logger.warning("a user's own", extra={"user": "ada"})
    try:
        raise ValueError("x")
    except ValueError:
        logger.exception("failed")


def test_as_json_each_line_is_an_object_with_its_fields(written: StringIO) -> None:
    use_format("json")
    tell()
    first, second, third = map(json.loads, written.getvalue().splitlines())
    assert first.pop("time").endswith("Z")
    assert first == {
        "level": "WARNING",
        "logger": "holdfast.test",
        "event": "topic %(topic)s: %(error)s",
        "message": "topic orders: no\nway",
        "topic": "orders",
        "error": "no\nway",
    }
    assert (second["event"], second["message"], second["user"]) == ("a user's own", "a user's own", "ada")
    assert (third["event"], third["message"]) == ("failed", "failed")
    assert third["exception"].endswith("ValueError: x")


def test_lines_of_one_event_have_the_same_template(written: StringIO) -> None:
    use_format("json")
    for topic in ("orders", "payments"):
        logging.getLogger("holdfast.test").warning("topic %(topic)s created", {"topic": topic})
        logging.getLogger("another.library").warning("topic %s created", topic)
    logging.getLogger("another.library").warning(ConfigError("no way"))
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [line["event"] for line in lines if line["logger"] == "holdfast.test"] == [
        "topic %(topic)s created",
        "topic %(topic)s created",
    ]
    assert [line["event"] for line in lines if line["logger"] != "holdfast.test"] == [
        "topic %s created",
        "topic %s created",
        "no way",
    ]


@pytest.mark.long
def test_no_line_of_ours_has_a_field_that_json_lines_have_already() -> None:
    """Such a field would be missing from the JSON, as `event` and the others go before it."""
    own = {"time", "level", "logger", "event", "message", "exception"}
    found = [
        f"{path.relative_to(ROOT)} line {call.lineno}"
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for call, (text, *_) in log_calls(path.read_text())
        if own & set(re.findall(r"%\((\w+)\)", ast.unparse(text)))
    ]
    assert found == []


def test_as_text_lines_are_what_they_were_and_nothing_of_ours_is_missing(written: StringIO) -> None:
    use_format("text")
    tell()
    assert written.getvalue().startswith("topic orders: no\nway\na user's own\nfailed\nTraceback")


def test_a_field_does_not_hide_what_every_line_has() -> None:
    record = logging.makeLogRecord(
        {"levelname": "INFO", "msg": "%(level)s %(event)s", "args": {"level": "high", "event": "storm"}}
    )
    told = json.loads(JsonFormatter().format(record))
    assert (told["level"], told["event"]) == ("INFO", "%(level)s %(event)s")
    assert told["message"] == "high storm"


def test_another_format_is_refused() -> None:
    with pytest.raises(ConfigError, match="log_format is 'xml'; write text or json"):
        Settings(log_format="xml")


def test_the_command_line_writes_as_its_settings_say(written: StringIO) -> None:
    Globals(flags={"log_format": "json"}).settings()
    tell()
    assert json.loads(written.getvalue().splitlines()[0])["topic"] == "orders"


@pytest.mark.process
def test_a_worker_writes_each_of_its_lines_as_json(tmp_path: Path) -> None:
    """It finds no broker, and logs this in one line of many."""
    (port,) = free_ports(1)
    settings = {
        "LOG_FORMAT": "json",
        "DATA_DIR": str(tmp_path),
        "WEB_PORT": str(free_ports(1)[0]),
        "REQUEST_TIMEOUT_S": "2",
        "SESSION_TIMEOUT_S": "2",
        "HEARTBEAT_INTERVAL_S": "0.5",
        "KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{port}",
    }
    done = subprocess.run(
        [sys.executable, "-P", "-m", "holdfast.agents", "worker", "-l", "info"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        | {f"HOLDFAST_{name}": value for name, value in settings.items()},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 1, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    leaving, last = (line for line in lines if line["level"] == "CRITICAL")
    assert lines[-1] == last, "twenty lines about the end of services followed the cause"
    assert leaving["message"] == last["message"]
    assert f"127.0.0.1:{port}" in leaving["reason"]
    assert leaving["event"] == "leaving: %(reason)s"
    assert leaving["message"] == f"leaving: {leaving['reason']}"
