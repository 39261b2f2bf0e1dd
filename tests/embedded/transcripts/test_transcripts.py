"""The same conversations with Apache Kafka and with the embedded broker: every answer is the same."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.dev.fixtures import SessionBroker
from holdfast.embedded.apis.handlers import HANDLERS
from holdfast.embedded.kafka import EmbeddedKafka
from holdfast.embedded.protocol.codes import KafkaCode
from tests.embedded.transcripts.guarded import Guarded, GuardedKafka, guarded_embedded
from tests.embedded.transcripts.guarded_rights import SCENARIOS as GUARDED_SCENARIOS
from tests.embedded.transcripts.recording import GUARDED, recorded, told, told_guarded
from tests.embedded.transcripts.scenarios import SCENARIOS, SLOW
from tests.embedded.transcripts.talk import Talk, codes_in

NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in SCENARIOS]
_ANSWER = re.compile(r"([A-Z]\w+) (\d+)(?: by [\w-]+)?: (\{.*)")


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_the_embedded_broker_answers_as_kafka_did(embedded: EmbeddedKafka, name: str) -> None:
    assert told(embedded.bootstrap, name) == recorded()[name]


@pytest.mark.parametrize("name", NAMES)
def test_kafka_answers_as_it_did(broker: SessionBroker, name: str) -> None:
    assert not_alone(told(broker.bootstrap, name)) == not_alone(recorded()[name])


def not_alone(lines: list[str]) -> list[str]:
    """Return *lines* as Kafka may send them to one of many clients: it verifies the open transactions of all
    concurrent writes together, and refuses each of them in the words that the first understands.

    >>> not_alone(['Produce 11: {"error_code": 120}', 'Produce 10: {"error_code": 48}'])
    ['Produce 11: {"error_code": 48}', 'Produce 10: {"error_code": 48}']
    """
    newer, older = KafkaCode.TRANSACTION_ABORTABLE, KafkaCode.INVALID_TXN_STATE
    return [line.replace(f'"error_code": {newer:d}', f'"error_code": {older:d}') for line in lines]


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with guarded_embedded() as found:
        yield found


@pytest.mark.long
@pytest.mark.parametrize("name", GUARDED_SCENARIOS)
def test_the_embedded_broker_guards_as_kafka_did(guarded: Guarded, name: str) -> None:
    assert told_guarded(guarded, name) == recorded(GUARDED)[name]


@pytest.mark.slow
@pytest.mark.kafka
def test_kafka_guards_as_it_did(tmp_path: Path) -> None:
    with GuardedKafka(tmp_path) as kafka:
        for name in GUARDED_SCENARIOS:
            assert told_guarded(kafka, name) == recorded(GUARDED)[name], name


def succeeded(line: str) -> tuple[str, int] | None:
    """Return api and version of a line that has an answer of success, perhaps along with refusals.

    >>> succeeded('JoinGroup 3 by two: {"error_code": 0, "members": []}')
    ('JoinGroup', 3)
    >>> succeeded('DeleteGroups 1: {"results": [{"error_code": 0}, {"error_code": 69}]}')
    ('DeleteGroups', 1)
    >>> succeeded('JoinGroup 3: {"error_code": 79}')
    >>> succeeded('DeleteGroups 1: {"results": [{"error_code": 69}]}')
    >>> succeeded('SaslHandshake 1: closed')
    """
    found = _ANSWER.fullmatch(line)
    if found is None:
        return None
    answer = json.loads(found[3])
    codes = codes_in(answer)
    if answer.get("error_code", 0) or (codes and 0 not in codes):
        return None
    return found[1], int(found[2])


def test_every_version_of_every_api_succeeds_somewhere() -> None:
    """A refusal alone would not show how a version is written: it leaves most of its fields out."""
    every = [*recorded().values(), *recorded(GUARDED).values()]
    shown = {succeeded(line) for lines in every for line in lines}
    wanted = {(api, version) for api in HANDLERS for version in Talk.versions(api)}
    assert wanted - shown == set()
