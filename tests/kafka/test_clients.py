"""Every Kafka client is made one way: where its lines and its errors go, and who has the last word."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from holdfast.kafka import clients
from holdfast.kafka.clients import CRITICAL, make_admin, make_member, make_reader, make_writer
from tests.kafka.hung_reader import HungReader, RefusingReader
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

MAKERS: list[tuple[Callable[..., Any], str]] = [
    (make_reader, "Reader"),
    (make_member, "Consumer"),
    (make_writer, "Producer"),
    (make_admin, "AdminClient"),
]


@pytest.fixture(params=MAKERS, ids=lambda each: each[0].__name__)
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Return a function that gives the configuration of a client."""
    make, kind = request.param
    monkeypatch.setattr(clients, kind, lambda config: config)
    return make  # type: ignore[no-any-return]


def test_a_client_gets_its_logger_its_level_and_its_callback(made: Callable[..., dict[str, Any]]) -> None:
    logger, heard = logging.getLogger("there"), list[KafkaError]()
    config = made({"client.id": "c"}, logger=logger, log_level=CRITICAL, on_error=heard.append)
    config.pop("enable.auto.commit", None)
    assert config == {"client.id": "c", "logger": logger, "log_level": 2, "error_cb": heard.append}


def test_a_client_gets_only_the_settings_that_were_asked_for(made: Callable[..., dict[str, Any]]) -> None:
    given = {"client.id": "c"}
    config = made(given)
    config.pop("enable.auto.commit", None)
    assert config == given == {"client.id": "c"}


def test_the_users_log_level_counts(made: Callable[..., dict[str, Any]]) -> None:
    assert made({"log_level": 7}, log_level=CRITICAL)["log_level"] == 7


def test_a_reader_never_commits_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("Reader", "Consumer"):
        monkeypatch.setattr(clients, kind, lambda config: config)
    given: Any = {"enable.auto.commit": True}
    reads: Any = make_reader(given)
    joins: Any = make_member(given)
    assert (reads["enable.auto.commit"], joins["enable.auto.commit"]) == (False, True)


def test_each_maker_makes_a_client_that_librdkafka_takes() -> None:
    for make, kind in MAKERS:
        config = {"bootstrap.servers": ""} | ({"group.id": "g"} if kind in ("Reader", "Consumer") else {})
        client = make(config, logger=logging.getLogger("quiet"), log_level=0, on_error=lambda _: None)
        assert any(each.__name__ == kind for each in type(client).__mro__)
        if isinstance(client, Consumer):
            client.close()


@pytest.fixture
def hung(monkeypatch: pytest.MonkeyPatch) -> Iterator[HungReader]:
    monkeypatch.setattr(clients, "CLOSE_S", 0.1)
    reader = HungReader({"group.id": "g"})
    yield reader
    reader.let_end()


def test_a_reader_whose_closing_never_ends_is_left_to_itself(
    hung: HungReader, caplog: pytest.LogCaptureFixture
) -> None:
    hung.close()
    hung.close()
    (told,) = caplog.messages
    assert told == "a consumer did not close within 0.1 s and is left to itself"
    (closing,) = (each for each in threading.enumerate() if each.name == "holdfast-close")
    assert closing.daemon, "no process waits for it"


def test_what_closing_a_reader_raises_is_raised() -> None:
    with pytest.raises(KafkaException, match="broken"):
        RefusingReader({"group.id": "g"}).close()


def test_what_librdkafka_refuses_is_raised() -> None:
    with pytest.raises(KafkaException, match=r"no\.such\.property"):
        make_writer({"no.such.property": 1})


LEFT = """
from holdfast.kafka.clients import make_reader


def read():
    reader = make_reader({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})
    try:
        while True:
            yield reader.poll(0)
    finally:
        reader.close()


records = read()
next(records)
"""


@pytest.mark.process
def test_a_reader_that_is_closed_as_the_interpreter_ends_keeps_it_from_nothing() -> None:
    """No thread runs any more then, and one that was waited for never began."""
    ended = subprocess.run(
        [sys.executable, "-P", "-c", LEFT],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
