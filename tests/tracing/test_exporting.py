"""The environment names the exporters of spans; an unusable one is reported in one line with its cure."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.dev.ports import free_ports
from holdfast.errors import ConfigError
from holdfast.tracing.exporting import END_S, LIMIT_ATTRIBUTE, exporter_named, wanted
from tests.cli.worker.test_worker import command
from tests.support.installations import Installations
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT
from tests.test_light_installation import python

LIMIT_S = 60.0
"""A collector that is waited for without a limit of ours is tried again for longer, and a machine freezes for
less.
"""
PROGRAM = "from holdfast import create_app\napp = create_app([])"


def test_an_exporter_that_is_not_installed_is_named() -> None:
    with pytest.raises(
        ConfigError,
        match=r"no exporter 'zipkin' is installed; there are .*console.*: pip install 'holdfast\[otel\]'",
    ):
        exporter_named("zipkin")


def test_an_unknown_protocol_is_named() -> None:
    with pytest.raises(ConfigError, match=r"OTEL_EXPORTER_OTLP_PROTOCOL='smtp': write http/protobuf or grpc"):
        wanted({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "smtp"})


@pytest.mark.variant
@pytest.mark.process
def test_a_worker_that_cannot_have_its_exporter_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    port = free_ports(1)[0]
    with command(
        tmp_path, "-A", "shop", "worker", "--port", str(port), OTEL_TRACES_EXPORTER="zipkin"
    ) as refused:
        assert refused.wait(DEADLINE_S) == 1
    printed = (tmp_path / "printed").read_text()
    assert "Traceback" not in printed, printed
    assert (
        "no exporter 'zipkin' is installed"
        in [line for line in printed.splitlines() if "CRITICAL" in line][-1]
    ), printed


@pytest.mark.process
def test_without_the_extra_nothing_is_sent_and_one_line_says_so(
    installations: Installations, tmp_path: Path
) -> None:
    code = (
        "import logging, os; logging.basicConfig(format='%(message)s')\n"
        "os.environ['OTEL_TRACES_EXPORTER'] = 'otlp'\n"
        "from holdfast.tracing.exporting import Exporting\n"
        "exporting = Exporting('shop'); exporting.start(); exporting.stop()"
    )
    done = python(installations.of(()), tmp_path, code)
    assert (done.returncode, done.stderr) == (
        0,
        "the environment asks for traces, which are not sent: pip install 'holdfast[otel]'\n",
    )


@pytest.mark.process
def test_a_collector_that_never_answers_delays_the_end_by_seconds_at_most(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        code = (
            "import os, time\n"
            f"os.environ['OTEL_EXPORTER_OTLP_ENDPOINT'] = 'http://127.0.0.1:{silent.getsockname()[1]}'\n"
            "from holdfast.tracing.exporting import Exporting\n"
            "exporting = Exporting('shop'); exporting.start()\n"
            "from opentelemetry import trace\n"
            "trace.get_tracer('t').start_span('s').end()\n"
            "began_s = time.monotonic(); exporting.stop(); print(time.monotonic() - began_s)"
        )
        done = subprocess.run(
            [sys.executable, "-P", "-c", code],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert END_S - 0.1 <= float(done.stdout) < LIMIT_S, "it was asked, and did not answer"


@pytest.mark.parametrize(("named", "expected"), [(None, LIMIT_ATTRIBUTE), ("77", 77)])
@pytest.mark.process
def test_the_text_about_a_record_is_bounded(named: str | None, expected: int, tmp_path: Path) -> None:
    """The text of an exception may quote a record of any size."""
    code = (
        "import os; os.environ['OTEL_TRACES_EXPORTER'] = 'console'\n"
        + (f"os.environ['OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT'] = '{named}'\n" if named else "")
        + "from holdfast.tracing.exporting import Exporting\n"
        "exporting = Exporting('shop'); exporting.start()\n"
        "from opentelemetry import trace\n"
        "span = trace.get_tracer('t').start_span('s')\n"
        "span.set_attribute('a', 'x' * 100_000)\n"
        "span.record_exception(ValueError('x' * 100_000)); span.end()\n"
        "assert len(span.attributes['a']) == len(span.events[0].attributes['exception.message']), 'alike'\n"
        "print('length', len(span.attributes['a'])); exporting.stop()"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, f"length {expected}\n" in done.stdout) == (0, True), done.stderr
