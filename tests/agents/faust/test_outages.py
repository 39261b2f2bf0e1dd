"""An outage of brokers is two lines, whatever Kafka's clients make of it."""

from __future__ import annotations

import logging
from pathlib import Path

import aiokafka
import pytest

from holdfast.agents.faust.process.outages import LATE, LIBRDKAFKA, PASSING, QUIET_S, UNREACHABLE, Outages
from holdfast.clock import ManualClock
from holdfast.kafka.fetching import fetcher

UNABLE = "Unable connect to node with id %s: %s"
REFUSED = (UNABLE, 1, "Connection refused")


class Log:
    """The root logger's handlers, two of them as with --logfile, and what they have written."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.outages = Outages(self.clock)
        self.lines: list[str] = []
        self.handlers = [self._handler(), self._handler()]

    def _handler(self) -> logging.Handler:
        handler = logging.Handler()
        handler.emit = lambda record: self.lines.append(f"{record.levelname} {record.getMessage()}")  # type: ignore[method-assign]
        handler.addFilter(self.outages.filter)
        return handler

    def look(self, *, is_down: bool = False) -> list[str]:
        self.outages.look(is_down=is_down)
        return self.told()

    def told(self) -> list[str]:
        """Return the lines written since the last call: by both handlers alike."""
        lines, self.lines = self.lines, []
        assert lines[::2] == lines[1::2]
        return lines[::2]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    made, root = Log(), logging.getLogger()
    monkeypatch.setattr(root, "handlers", made.handlers)
    monkeypatch.setattr(root, "level", logging.INFO)
    return made


client = logging.getLogger("aiokafka")


def test_the_reports_of_librdkafka_about_an_outage_are_part_of_it(log: Log) -> None:
    """Of a console that a worker serves, or of an outbox: each of their clients tries several times a
    second.
    """
    librdkafka, failed = logging.getLogger("holdfast.clients"), "127.0.0.1:1 failed: Connection refused"
    librdkafka.info(LIBRDKAFKA, "FAIL", "shop#consumer-1", "Disconnected (after 600000ms in state UP)")
    assert log.told() == ["INFO FAIL [shop#consumer-1] Disconnected (after 600000ms in state UP)"]
    for number in range(100):
        librdkafka.error(LIBRDKAFKA, "FAIL", f"shop#consumer-{number}", failed)
        librdkafka.error(LIBRDKAFKA, "ERROR", f"shop#consumer-{number}", "1/1 brokers are down")
        log.clock.advance_ms(200)
    assert log.told() == [f"WARNING a broker cannot be reached: FAIL [shop#consumer-0] {failed}"]
    librdkafka.error(LIBRDKAFKA, "CONFWARN", "shop#consumer-1", "no effect")
    assert log.told() == ["ERROR CONFWARN [shop#consumer-1] no effect"]
    log.clock.advance_ms(int(QUIET_S * 1000))
    assert log.look() == ["WARNING brokers that are asked answer again, after 20 s (199 lines left out)"]


def test_an_outage_is_one_line_at_its_beginning_and_one_at_its_end(log: Log) -> None:
    for _ in range(100):
        client.error(*REFUSED)
        client.warning("Marking the coordinator dead (node %s)for group %s.", 1, "shop")
        log.clock.advance_ms(200)
        log.outages.look(is_down=False)
    assert log.told() == [
        "WARNING a broker cannot be reached: Unable connect to node with id 1: Connection refused"
    ]
    log.clock.advance_ms(int(QUIET_S * 1000) - 300)
    assert log.look() == []
    log.clock.advance_ms(300)
    assert log.look() == ["WARNING brokers that are asked answer again, after 20 s (199 lines left out)"]
    log.clock.advance_ms(60_000)
    assert log.look() == []
    client.error(*REFUSED)
    assert len(log.told()) == 1, "the next outage is told again"


def test_an_outage_without_attempts_lasts_as_long_as_the_fetcher_hears_nothing(log: Log) -> None:
    logging.getLogger("holdfast").warning("sources: no broker answers: %(why)s", {"why": "timed out"})
    assert log.told() == ["WARNING a broker cannot be reached: sources: no broker answers: timed out"]
    for _ in range(30):
        log.clock.advance_ms(1_000)
        assert log.look(is_down=True) == []
    logging.getLogger("holdfast").warning("sources: a broker answers again")
    log.clock.advance_ms(int(QUIET_S * 1000))
    assert log.look() == ["WARNING brokers that are asked answer again, after 30 s (1 lines left out)"]


def test_a_rebalance_and_a_coordinator_that_moves_are_no_warning(log: Log) -> None:
    for template in sorted(PASSING - {"sources: a broker answers again"}):
        client.error(template, *["x"] * template.count("%s"))
    assert {line.split()[0] for line in log.told()} == {"INFO"}
    assert log.look() == []


def test_a_late_timer_is_news_unless_a_broker_is_away(log: Log) -> None:
    client.warning(LATE, "commit", 1.0, 45.0)
    client.error(*REFUSED)
    client.warning(LATE, "commit", 1.0, 45.0)
    assert [line.split()[0] for line in log.told()] == ["WARNING", "WARNING"]


def test_every_other_line_passes_also_within_an_outage(log: Log) -> None:
    client.error(*REFUSED)
    log.told()
    client.error("Topic %s is not authorized for this client", "orders")
    logging.getLogger("holdfast").error("leaving: %(reason)s", {"reason": "disk full"})
    assert log.told() == [
        "ERROR Topic orders is not authorized for this client",
        "ERROR leaving: disk full",
    ]


def test_at_debug_nothing_is_left_out(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "level", logging.DEBUG)
    logging.getLogger().manager._clear_cache()  # type: ignore[attr-defined]
    for _ in range(3):
        client.error(*REFUSED)
    assert len(log.told()) == 3
    logging.getLogger().manager._clear_cache()  # type: ignore[attr-defined]


def test_the_templates_are_those_of_the_clients() -> None:
    """A new aiokafka may say it in other words: then its lines would come through again."""
    sources = [*Path(aiokafka.__file__).parent.rglob("*.py"), Path(fetcher.__file__)]
    joined = "".join(path.read_text() for path in sources)
    text = "".join(joined.replace("\n", "").split()).replace('""', "")
    assert [each for each in sorted(UNREACHABLE | PASSING) if "".join(each.split()) not in text] == []
