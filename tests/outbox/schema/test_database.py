"""The connection of a harvester: errors of its database, as a person reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import OutboxDatabaseError
from holdfast.outbox.schema.database import Database
from tests.outbox.databases import FreshOutbox


def test_a_missing_table_is_reported_with_the_command_that_makes_it(tmp_path: Path) -> None:
    (tmp_path / "shop.db").touch()
    database = Database(f"sqlite:///{tmp_path / 'shop.db'}")
    try:
        with pytest.raises(OutboxDatabaseError, match=r"no such table: outbox; `holdfast outbox init` makes"):
            database.run("SELECT * FROM outbox")
        with pytest.raises(OutboxDatabaseError, match=r"no such column: nope$"):
            database.run("SELECT nope")
    finally:
        database.close()


@pytest.mark.database
def test_a_connection_to_a_server_that_takes_no_writes_any_more_is_not_kept(
    postgres_outbox: FreshOutbox,
) -> None:
    """A primary that became a standby keeps its connections; the address may lead to the next primary."""
    with postgres_outbox.rows() as rows:
        rows.database.run("SET default_transaction_read_only = on").close()
        with pytest.raises(OutboxDatabaseError) as caught:
            rows.epoch(0, "me")
        assert caught.value.is_lost
        assert rows.epoch(0, "me") == 1
