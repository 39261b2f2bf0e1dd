"""The connection of a harvester: errors of its database, as a person reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import OutboxDatabaseError
from holdfast.outbox.schema.database import Database


def test_a_missing_table_is_told_with_the_command_that_makes_it(tmp_path: Path) -> None:
    (tmp_path / "shop.db").touch()
    database = Database(f"sqlite:///{tmp_path / 'shop.db'}")
    try:
        with pytest.raises(OutboxDatabaseError, match=r"no such table: outbox; `holdfast outbox init` makes"):
            database.run("SELECT * FROM outbox")
        with pytest.raises(OutboxDatabaseError, match=r"no such column: nope$"):
            database.run("SELECT nope")
    finally:
        database.close()
