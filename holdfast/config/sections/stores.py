"""Settings of the stores that hold tables on disk, and of their rows in memory."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.config.sections.section import GIB, MIB, Section, setting


@dataclass(frozen=True, kw_only=True)
class StoreSettings(Section):
    """Section `[stores]`: memory of RocksDB, and the check of stores against their changelogs."""

    store_cache_bytes: int = setting(
        64 * MIB, "RocksDB block cache, shared by all stores", low=MIB, high=1024 * GIB
    )
    store_write_buffer_bytes: int = setting(
        64 * MIB, "RocksDB write buffers, shared by all stores", low=MIB, high=1024 * GIB
    )
    store_check_interval_s: float = setting(
        0,
        "interval at which each store is compared with its changelog, slowly; 0 for never",
        low=0,
        high=31_536_000,
    )
    cache_rows: int = setting(
        200_000, "decoded rows kept for each partition of a table", low=0, high=1_000_000_000
    )
