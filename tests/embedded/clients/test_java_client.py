"""Kafka's own client, in Java, against the embedded broker: groups of both protocols, by name and by
pattern, and transactions of version 2.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.jars import find_java, kafka_jars
from tests.support.patience import SCENARIO_S

pytestmark = pytest.mark.process

PROGRAM = Path(__file__).parent / "JavaClient.java"
EXPECTED = """copied 200
groups [Classic Empty]
offsets 200
transactions [CompleteCommit]
copied 200
groups [Consumer Empty]
offsets 200
transactions [CompleteCommit]
matched 400
fenced
"""


def test_kafkas_own_client_copies_exactly_once(embedded: EmbeddedKafka) -> None:
    command = [
        str(find_java()),
        "-XX:TieredStopAtLevel=1",
        "-cp",
        os.pathsep.join(map(str, kafka_jars())),
        str(PROGRAM),
        embedded.bootstrap,
    ]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=SCENARIO_S, check=False)
    assert ran.stdout == EXPECTED, ran.stderr
