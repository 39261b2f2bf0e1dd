"""`--metrics-port`: listened on before the command takes part in anything, and no longer than it runs."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.cli.__main__ import main
from holdfast.cli.options.metrics_port import LOOPBACK, metrics_on
from holdfast.dev.ports import free_ports
from holdfast.errors import ConfigError


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with closing(socket.create_server((LOOPBACK, 0))) as made:
        made.setblocking(False)
        yield made


def port_of(listening: socket.socket) -> int:
    return int(listening.getsockname()[1])


@pytest.mark.parametrize(
    "words",
    [
        ("outbox", "harvest", "--database", "sqlite:///orders.db"),
        ("groups", "lag"),
        ("pipeline", "land", "--lake", "lake", "--topics", "orders"),
    ],
    ids=lambda words: words[1],
)
def test_a_port_that_is_taken_is_told_before_the_command_takes_part_in_anything(
    words: tuple[str, ...],
    listening: socket.socket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(socket.create_server((LOOPBACK, 0))) as broker:
        broker.setblocking(False)
        port = port_of(listening)
        with pytest.raises(SystemExit) as ended:
            main([*words, "--metrics-port", str(port), "--bootstrap", f"{LOOPBACK}:{port_of(broker)}"])
        with pytest.raises(BlockingIOError):  # nobody has connected
            broker.accept()
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"holdfast: --metrics-port {port} cannot be listened on: Address already in use; choose a free port"
    )


class Page(Collector):
    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily("rows", "Rows", value=7)


def test_pages_are_served_while_the_block_runs_and_the_port_is_free_again_after_it() -> None:
    (port,) = free_ports(1)
    for _ in range(2):
        with metrics_on(port) as metrics:
            metrics.register(Page())
            with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", timeout=60) as answer:
                assert b"rows 7.0" in answer.read()
            with pytest.raises(ConfigError), metrics_on(port):
                pytest.fail("two listen on one port")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((LOOPBACK, port))


def test_nothing_is_served_without_a_port() -> None:
    with metrics_on(None) as metrics:
        metrics.register(Page())
        assert metrics.get_sample_value("rows") == 7
