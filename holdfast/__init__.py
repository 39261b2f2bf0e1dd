"""holdfast: event-sourced processors on Kafka, claims, and outboxes.

The names below are the public face, and so is what the pages in docs/ name of these modules:

* `holdfast.streams`: steps, aggregations, windows and joins;
* `holdfast.clients` and `holdfast.errors`;
* `holdfast.agents.services.bookkeeper`: `books` and `dedupe`, to declare ledgers in your own application;
* `holdfast.outbox.schema.migrate`, `holdfast.outbox.schema.tables` and `holdfast.outbox.schema.layouts`: the
  tables of an outbox, and `DebeziumLayout`;
* `holdfast.outbox.harvest.harvester` and `holdfast.outbox.goharvest`: a `Harvester` in your own process, and
  the settings of a reaper;
* `holdfast.pipeline.pages.page` and `holdfast.pipeline.pages.timelines`: pages with plots of what a lake
  holds;
* `holdfast.testing`, `holdfast.embedded.kafka`, `holdfast.dev.fixtures`, `holdfast.dev.databases.servers` and
  `holdfast.dev.databases.schema_registry`: for your tests.

Everything else is internal: it may change in any release. Each name is imported at its first use: a Spark
executor that imports `holdfast.core` runs this file, and a service that only claims partitions needs no
Faust.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.extras import MissingExtras

MissingExtras.install()

if TYPE_CHECKING:
    from holdfast.agents.app import create_app
    from holdfast.clients.claims.blocking import BlockingClaimConsumer
    from holdfast.clients.claims.consumer import ClaimConsumer
    from holdfast.clients.claims.messages import ClaimedMessage
    from holdfast.clients.producers.sequenced import SequencedProducer
    from holdfast.clients.ranges.consumer import RangeConsumer
    from holdfast.clients.tables.blocking import BlockingTableClient
    from holdfast.clients.tables.client import TableClient
    from holdfast.config import Settings, settings_from_environment
    from holdfast.core.engine.declared.global_tables import Global
    from holdfast.core.engine.declared.named_tables import Table
    from holdfast.core.engine.declared.partitioners import by_key
    from holdfast.core.engine.declared.processor import Emit, Processor
    from holdfast.core.engine.declared.serdes import Bytes, Json, Msgpack, Text
    from holdfast.core.engine.declared.sources import FoldWith, Source
    from holdfast.core.engine.declared.streams import Internal, Stream
    from holdfast.core.engine.fold.traced import traced
    from holdfast.core.engine.state.rows import Rows
    from holdfast.errors import HoldfastError
    from holdfast.outbox.writer.outbox_writer import OutboxRecord, OutboxWriter
    from holdfast.schemas.avro import Avro
    from holdfast.schemas.json_schema import JsonSchema
    from holdfast.schemas.protobuf import Protobuf

__all__ = [
    "Avro",
    "BlockingClaimConsumer",
    "BlockingTableClient",
    "Bytes",
    "ClaimConsumer",
    "ClaimedMessage",
    "Emit",
    "FoldWith",
    "Global",
    "HoldfastError",
    "Internal",
    "Json",
    "JsonSchema",
    "Msgpack",
    "OutboxRecord",
    "OutboxWriter",
    "Processor",
    "Protobuf",
    "RangeConsumer",
    "Rows",
    "SequencedProducer",
    "Settings",
    "Source",
    "Stream",
    "Table",
    "TableClient",
    "Text",
    "by_key",
    "create_app",
    "settings_from_environment",
    "traced",
]

_HOMES = {
    "Avro": "schemas.avro",
    "BlockingClaimConsumer": "clients.claims.blocking",
    "BlockingTableClient": "clients.tables.blocking",
    "Bytes": "core.engine.declared.serdes",
    "ClaimConsumer": "clients.claims.consumer",
    "ClaimedMessage": "clients.claims.messages",
    "Emit": "core.engine.declared.processor",
    "FoldWith": "core.engine.declared.sources",
    "Global": "core.engine.declared.global_tables",
    "HoldfastError": "errors",
    "Internal": "core.engine.declared.streams",
    "Json": "core.engine.declared.serdes",
    "JsonSchema": "schemas.json_schema",
    "Msgpack": "core.engine.declared.serdes",
    "OutboxRecord": "outbox.writer.outbox_writer",
    "OutboxWriter": "outbox.writer.outbox_writer",
    "Processor": "core.engine.declared.processor",
    "Protobuf": "schemas.protobuf",
    "RangeConsumer": "clients.ranges.consumer",
    "Rows": "core.engine.state.rows",
    "SequencedProducer": "clients.producers.sequenced",
    "Settings": "config",
    "Source": "core.engine.declared.sources",
    "Stream": "core.engine.declared.streams",
    "Table": "core.engine.declared.named_tables",
    "TableClient": "clients.tables.client",
    "Text": "core.engine.declared.serdes",
    "by_key": "core.engine.declared.partitioners",
    "create_app": "agents.app",
    "settings_from_environment": "config",
    "traced": "core.engine.fold.traced",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"holdfast.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
