"""A reaper's configuration as the reaper reads it: defaults, dependent values, and refusals before any input
or output.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.config import Settings
from holdfast.core.engine.declared.partitioners import goharvest_cell
from holdfast.errors import ConfigError
from holdfast.outbox.goharvest import ReaperLimits, _camel, limits_of, settings_of
from holdfast.outbox.settings import HarvestSettings, Strategy
from tests.support.places import TESTDATA

VECTORS = json.loads((TESTDATA / "outbox_defaults.json").read_text())
FNV = json.loads((TESTDATA / "fnv1a32.json").read_text())


def told(limits: ReaperLimits) -> dict[str, float]:
    """Return limits under the vectors' names."""
    return {
        _camel(name) + ("_ms" if name.endswith("_ms") else ""): getattr(limits, name)
        for name in ReaperLimits.__dataclass_fields__
    }


def given(changes: dict[str, Any]) -> dict[str, Any]:
    """Return a reaper's document that says what a vector sets."""
    document: dict[str, Any] = {"limits": {}}
    for name, value in changes.items():
        if name in ("name", "leaderTopic", "unknownKey"):
            document[name] = value
        elif name.startswith("producerKafkaConfig."):
            document["producerKafkaConfig"] = {name.partition(".")[2]: value}
        else:
            document["limits"][name.removesuffix("_ms")] = f"{value}ms" if name.endswith("_ms") else value
    return document


def read(document: dict[str, Any]) -> HarvestSettings:
    return settings_of(document, kafka=Settings(), name="orders")


def test_a_reapers_defaults_are_its_own() -> None:
    """O5."""
    assert told(limits_of({})) == VECTORS["defaults"]


@pytest.mark.parametrize("vector", VECTORS["derivations"], ids=lambda vector: str(vector["set"]))
def test_missing_values_follow_from_given_ones(vector: dict[str, dict[str, int]]) -> None:
    """O5: a heartbeat of 40 s gives 20 s of polling and draining; a queue timeout of 15 s cuts the
    draining.
    """
    found = told(limits_of(given(vector["set"])["limits"]))
    assert {name: found[name] for name in vector["expect"]} == vector["expect"]


@pytest.mark.parametrize("vector", VECTORS["invalid"], ids=lambda vector: str(vector["set"]))
def test_what_a_reaper_refuses_is_refused_before_anything_is_contacted(vector: dict[str, Any]) -> None:
    """O5, H12, H15: with the two that only holdfast refuses."""
    with pytest.raises(ConfigError):
        read(given(vector["set"]))


@pytest.mark.parametrize("name", [name for name, least in VECTORS["minimums"].items() if least != 0])
def test_every_limit_has_its_least_value(name: str) -> None:
    """O5."""
    with pytest.raises(ConfigError, match=name.removesuffix("_ms")):
        read(given({name: -1}))


@pytest.mark.parametrize(
    "limits",
    [
        {"heartbeatTimeout": "soon"},
        {"heartbeatTimeout": "5 s"},
        {"sendConcurrency": "8"},
        {"sendConcurrency": True},
        {"beat": 1},
    ],
)
def test_an_unknown_limit_is_named(limits: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"limits\."):
        limits_of(limits)


def test_the_harvester_replaces_the_reaper() -> None:
    document = {
        "baseKafkaConfig": {"bootstrap.servers": "kafka:9092"},
        "producerKafkaConfig": {"compression.type": "lz4", "delivery.timeout.ms": 10_000},
        "leaderGroupID": "reapers",
        "dataSource": "host=db port=5432 user=reaper password=secret dbname=shop sslmode=disable",
        "limits": {"minPollInterval": "1s", "markQueryRecords": 500, "heartbeatTimeout": 3_000_000_000},
    }
    found = read(document)
    assert (found.strategy, found.layout, found.interop, found.key_in_flight) == (
        Strategy.MARK,
        "goharvest",
        True,
        1,
    )
    assert (found.group_id, found.leader_topic) == ("reapers", "reapers.neli")
    assert (found.batch_rows, found.in_flight_rows, found.heartbeat_timeout_s, found.retry_s) == (
        500,
        1_000,
        3.0,
        0.5,
    )
    assert found.database == "postgresql+psycopg://reaper:secret@db:5432/shop?sslmode=disable"
    assert found.producer()["compression.type"] == "lz4"
    assert found.kafka.client()["bootstrap.servers"] == "kafka:9092"


@pytest.mark.parametrize("vector", FNV["vectors"], ids=lambda vector: vector["key"])
def test_keys_go_to_a_reapers_cells_as_they_do_there(vector: dict[str, Any]) -> None:
    """O6: key-1 among 8 goes to 6, no text to 5, and with one cell everything to 0."""
    key = str(vector["key"]).encode()
    assert [goharvest_cell(key, cells) for cells in (1, 2, 4, 8)] == [
        0,
        vector["mod2"],
        vector["mod4"],
        vector["mod8"],
    ]
    assert goharvest_cell(key, 1 << 32) == vector["hash"]
