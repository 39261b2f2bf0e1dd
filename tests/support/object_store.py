"""An S3-compatible server on loopback: Adobe's S3Mock, with a proxy that admits one conditional put at a
time.

S3Mock checks whether a key exists, and then writes it. Two clients that do so at once both win, where S3 lets
one of them win; the proxy restores that. Unconditional requests pass through concurrently and unchanged.
S3Mock's plain port listens on all interfaces, which it has no setting for: it holds only the tests' data, and
ends with them.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from shutil import rmtree

from holdfast import jars
from holdfast.dev.waits import wait_until
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

BUCKET = "lake"


@contextmanager
def object_store(folder: Path) -> Iterator[dict[str, str]]:
    """Run a server that keeps its objects in *folder*, and give the environment in which delta-rs reaches
    it.
    """
    (jar,) = jars.resolve(Path(__file__).with_name("s3mock.lock"))
    port = _free_port()
    scratch = folder / "scratch"
    scratch.mkdir()
    options = {
        "server.address": "127.0.0.1",
        "server.port": str(_free_port()),
        "com.adobe.testing.s3mock.httpPort": str(port),
        "com.adobe.testing.s3mock.store.root": str(folder / "objects"),
        "com.adobe.testing.s3mock.store.initialBuckets": BUCKET,
    }
    # It writes an upload to a temporary file first, and leaves that where it is killed.
    flags = ["-XX:TieredStopAtLevel=1", "-Xmx256m", f"-Djava.io.tmpdir={scratch}"]
    command = [str(jars.find_java()), *flags, "-jar", str(jar)]
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [*command, *(f"--{name}={value}" for name, value in options.items())],
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    try:
        wait_until(f"S3Mock on port {port}", lambda: _answers(port), DEADLINE_S)
        with _door(port) as address:
            yield {
                "AWS_ENDPOINT_URL": address,
                "AWS_ALLOW_HTTP": "true",
                "AWS_ACCESS_KEY_ID": "test",
                "AWS_SECRET_ACCESS_KEY": "test",
                "AWS_REGION": "us-east-1",
            }
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(DEADLINE_S)
        rmtree(scratch, ignore_errors=True)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    try:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("HEAD", f"/{BUCKET}")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False


@contextmanager
def _door(port: int) -> Iterator[str]:
    """Run the door in front of the server on *port*, and give its address. It is a process of its own:
    delta-rs keeps this one's threads waiting where it looks for a table.
    """
    door = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.support.s3_door", str(port)],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert door.stdout is not None
    with door:
        try:
            yield door.stdout.readline().decode().strip()
        finally:
            door.kill()
