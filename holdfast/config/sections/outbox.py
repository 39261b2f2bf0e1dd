"""Settings of the outbox; `outbox/settings.py` says what a harvester makes of them."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.config.sections.section import Section, setting


@dataclass(frozen=True, kw_only=True)
class OutboxSettings(Section):
    """Section `[outbox]`: the database with the outbox, and how it is harvested."""

    outbox_database: str | None = setting(None, "URL of the database with the outbox", secret=True)
    outbox_harvest: bool = setting(False, "workers harvest the outbox too")
    outbox_name: str = setting("", "name of the outbox, never to change: its topics, default <app>-outbox")
    outbox_table: str = setting("outbox", "the outbox table, schema.table to name its schema")
    outbox_layout: str = setting("holdfast", "layout of the table's columns: holdfast, goharvest or debezium")
    outbox_strategy: str = setting(
        "fenced", "fenced (exactly once) or mark (as goharvest, which may share the table)"
    )
    outbox_shards: int = setting(1, "leaders of the outbox; equal in all harvesters", low=1, high=256)
    outbox_poison: str = setting("pass", "pass or wait: after a row's quarantine its key continues, or waits")
    outbox_attempts: int = setting(
        5, "attempts before a refused row goes to the quarantine", low=1, high=1_000
    )
    outbox_heartbeat_timeout_s: float = setting(
        5.0, "a leader silent for three times this is replaced", low=2, high=600
    )
    outbox_batch_rows: int = setting(5_000, "most rows in one transaction", low=1, high=100_000)
