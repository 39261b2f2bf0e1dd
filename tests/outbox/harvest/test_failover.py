"""An outbox whose database fails over to a hot standby in the middle of a harvest."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from holdfast.dev.databases import binaries
from holdfast.dev.databases.servers import DATABASE, USER, Postgres, _other_user
from tests.outbox.databases import FreshOutbox
from tests.outbox.embedded import bench
from tests.support.harness import wait_for
from tests.support.patience import DEADLINE_S

pytestmark = pytest.mark.database

ROWS = 2_000


class Standby(Postgres):
    """A copy of *primary* that follows it."""

    primary: Postgres

    def _initialise(self) -> None:
        self.password = self.primary.password
        user, data = _other_user(), self.folder / "data"
        subprocess.run(
            [
                str(binaries.find_postgres() / "pg_basebackup"),
                *("-D", str(data), "-R", "-X", "stream", "-c", "fast", "--no-sync"),
                *("-h", "127.0.0.1", "-p", str(self.primary.port), "-U", USER),
            ],
            check=True,
            env={**os.environ, "PGPASSWORD": self.password},
            timeout=DEADLINE_S,
        )
        if user is not None:
            for each in (self.folder, data, *data.rglob("*")):
                os.chown(each, user.pw_uid, user.pw_gid, follow_symlinks=False)

    def let_go(self) -> None:
        """Follow the primary no more."""
        with self.connect() as connection:
            connection.autocommit = True
            connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
            connection.execute("SELECT pg_reload_conf()")
            wait_for(
                "a standby that follows nothing",
                lambda: connection.execute("SELECT count(*) FROM pg_stat_wal_receiver").fetchone() == (0,),
                DEADLINE_S,
            )

    def promote(self) -> None:
        with self.connect() as connection:
            assert connection.execute("SELECT pg_promote()").fetchone() == (True,)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Postgres, Standby]]:
    # Below a folder that the servers' own user may enter.
    with Postgres() as primary:
        standby = Standby()
        standby.primary = primary
        with standby:
            yield primary, standby


def has_followed(primary: Postgres, standby: Postgres) -> bool:
    with primary.connect() as one, standby.connect() as other:
        ((end,),) = one.execute("SELECT pg_current_wal_lsn()").fetchall()
        ((reached,),) = other.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", (end,)).fetchall()
    return bool(reached)


@pytest.mark.parametrize(
    "follows", [True, pytest.param(False, marks=pytest.mark.variant)], ids=["level", "behind"]
)
def test_rows_are_published_once_over_a_failover(pair: tuple[Postgres, Standby], follows: bool) -> None:
    """A standby that lags has rows again that were published and deleted on the primary."""
    primary, standby = pair
    hosts = f"host=127.0.0.1:{primary.port}&host=127.0.0.1:{standby.port}&target_session_attrs=read-write"
    url = f"postgresql+psycopg://{USER}:{primary.password}@/{DATABASE}?{hosts}&connect_timeout=5"
    outbox = FreshOutbox.make(url)
    with bench(outbox) as desk:
        desk.write(*map(str, range(ROWS)))
        wait_for("a standby that has the rows", lambda: has_followed(primary, standby), DEADLINE_S)
        if not follows:
            standby.let_go()
        with desk.leading(batch_rows=20) as alone:
            wait_for("rows that flow", lambda: alone.stats.published >= 100, DEADLINE_S)
            primary.kill()
            time.sleep(0.2)  # the harvester meets a standby that takes no writes
            standby.promote()
            wait_for("an empty table", lambda: desk.left() == 0, DEADLINE_S, lambda: str(alone.stats))
        desk.write("after")
        desk.publish()
        assert desk.published() == [*map(str, range(ROWS)), "after"]


@pytest.mark.variant
def test_a_standby_is_refused_until_it_is_promoted(pair: tuple[Postgres, Standby]) -> None:
    primary, standby = pair
    made = FreshOutbox.make(primary.url)
    url = standby.url.replace(standby.password, primary.password)
    outbox = FreshOutbox(url=url, table=made.table, layout=made.layout)
    with bench(made) as desk:
        desk.write("one", "two")
        wait_for("a standby that has the rows", lambda: has_followed(primary, standby), DEADLINE_S)
        desk.outbox = outbox
        with desk.leading() as alone:
            wait_for("what the database says", lambda: "read-only" in alone.stats.last_error, DEADLINE_S)
            assert desk.published() == []
            primary.kill()
            standby.promote()
            wait_for("an empty table", lambda: desk.left() == 0, DEADLINE_S, lambda: str(alone.stats))
        assert desk.published() == ["one", "two"]
        with create_engine(url).begin() as connection:
            assert connection.execute(text("SELECT pg_is_in_recovery()")).scalar() is False
