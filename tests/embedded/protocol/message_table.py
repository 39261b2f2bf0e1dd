"""Draws holdfast/embedded/protocol/messages.txt from the definitions in Kafka's own archives:

python -P -m tests.embedded.protocol.message_table

A message that is to be added needs a line with its name there.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from holdfast.jars import kafka_jars
from tests.support.places import ROOT

TABLE = ROOT / "holdfast" / "embedded" / "protocol" / "messages.txt"
ARCHIVES = ("kafka-clients", "kafka-group-coordinator", "kafka-transaction-coordinator")


def drawn(archives: Iterable[Path], table: str) -> str:
    """Return *table* regenerated: the messages that it names, as the archives define them."""
    found = {each["name"]: each for each in definitions(archives)}
    names = [line.split(" ")[0] for line in table.splitlines() if not line.startswith(" ")]
    ordered = sorted(
        set(names), key=lambda name: (_is_stored(found[name]), found[name].get("apiKey", -1), name)
    )
    return "".join(line + "\n" for name in ordered for line in _message(found[name]))


def _is_stored(told: dict[str, Any]) -> bool:
    return told["type"] not in ("request", "response")


def definitions(archives: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Yield the definition of each message in Kafka's archives."""
    for path in archives:
        if re.sub(r"-[0-9.]+jar$", "", path.name) not in ARCHIVES:
            continue
        with zipfile.ZipFile(path) as opened:
            for name in opened.namelist():
                if name.startswith("common/message/") and name.endswith(".json"):
                    yield json.loads(re.sub(r"(?m)^\s*//.*$", "", opened.read(name).decode()))


def snake(name: str) -> str:
    """Return a field's name as Python writes it.

    >>> snake("TransactionV2Enabled"), snake("ISRNodes"), snake("PartitionIndex")
    ('transaction_v2_enabled', 'isr_nodes', 'partition_index')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _message(told: dict[str, Any]) -> Iterator[str]:
    common = {each["name"]: each["fields"] for each in told.get("commonStructs", [])}
    key = "-" if _is_stored(told) else told["apiKey"]
    yield f"{told['name']} {key} {told['validVersions']} flexible {told['flexibleVersions']}"
    yield from _fields(told["fields"], common, 1)


def _fields(fields: list[dict[str, Any]], common: dict[str, Any], depth: int) -> Iterator[str]:
    for each in fields:
        array = "[]" if each["type"].startswith("[]") else ""
        kind = each["type"].removeprefix("[]")
        inner = (each.get("fields") or common.get(kind)) if kind[0].isupper() else None
        words = [
            snake(each["name"]),
            array + ("{}" if inner is not None else kind),
            each.get("versions", "0+"),
        ]
        if "nullableVersions" in each:
            words += ["null", each["nullableVersions"]]
        if "tag" in each:
            words += ["tag", str(each["tag"]), each["taggedVersions"]]
        if each.get("default") not in (None, ""):
            words += ["=", str(each["default"]).lower() if each["type"] == "bool" else str(each["default"])]
        yield " " * depth + " ".join(words)
        if inner is not None:
            yield from _fields(inner, common, depth + 1)


if __name__ == "__main__":
    TABLE.write_text(drawn(kafka_jars(), TABLE.read_text()))
