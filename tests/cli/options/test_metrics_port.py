"""`--metrics-port`: listened on before the command takes part in anything, and no longer than it runs."""

from __future__ import annotations

import gzip
import http.client
import select
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.cli.__main__ import main
from holdfast.cli.options.metrics_port import LIMIT_CONNECTIONS, LOOPBACK, metrics_on
from holdfast.dev.ports import free_ports
from holdfast.errors import ConfigError
from tests.support.patience import DEADLINE_S


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
def test_a_port_that_is_taken_is_reported_before_the_command_takes_part_in_anything(
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
        with pytest.raises(BlockingIOError):  # no client has connected
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


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"Host": "rebound.example"}, 403),
        ({"Host": f"{LOOPBACK}.example:80"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200),
        ({"Host": "localhost:9200", "Accept-Encoding": "gzip"}, 200),
    ],
)
def test_no_page_of_another_site_reads_it(sent: dict[str, str], status: int) -> None:
    (port,) = free_ports(1)
    with metrics_on(port) as metrics:
        metrics.register(Page())
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=60)
        connection.request("GET", "/metrics", headers=sent)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
    shown = gzip.decompress(body) if answer.getheader("Content-Encoding") == "gzip" else body
    assert (answer.status, b"rows 7.0" in shown) == (status, status == 200)
    if status == 200:
        assert answer.getheader("X-Frame-Options") == "DENY"
        assert (answer.getheader("Content-Encoding") == "gzip") == ("Accept-Encoding" in sent)


def test_a_form_is_refused() -> None:
    (port,) = free_ports(1)
    with metrics_on(port), pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(f"http://{LOOPBACK}:{port}/metrics", data=b"x", timeout=60)


def test_connections_are_limited() -> None:
    (port,) = free_ports(1)
    with metrics_on(port), ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((LOOPBACK, port))) for _ in range(40)]
        refused, _, _ = select.select(silent, [], [], DEADLINE_S)
        while len(refused) < 40 - LIMIT_CONNECTIONS:
            refused, _, _ = select.select(silent, [], [], DEADLINE_S)
        assert {each.recv(1) for each in refused} == {b""}
        assert len(refused) == 40 - LIMIT_CONNECTIONS


def test_nothing_is_served_without_a_port() -> None:
    with metrics_on(None) as metrics:
        metrics.register(Page())
        assert metrics.get_sample_value("rows") == 7
