"""goharvest's marks: the table's own column `leader_id` names the leader of a row.

Marking, purging and resetting are one transaction each. A mark counts only for the leader that holds the
shard's newest epoch in the lease table, so of two of our processes that both believe to lead, one is refused;
purges and resets touch nothing but the caller's own marks, so that a late one cannot take a row from under
its successor.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import bindparam, func, literal_column, or_, select

from holdfast.errors import OutboxDroppedError
from holdfast.outbox.harvest.table.row_types import ShardEpoch
from holdfast.outbox.harvest.table.rows import LIMIT_IDS, OutboxRows
from holdfast.outbox.schema.columns import MYSQL
from holdfast.outbox.schema.layouts import OutboxRow


class MarkedRows:
    """The rows of an outbox in goharvest's layout, for one leader at a time; an addition to `OutboxRows`,
    over the same connection.
    """

    def __init__(self, rows: OutboxRows) -> None:
        self._rows, self._database = rows, rows.database
        self._texts: dict[int, tuple[str, dict[str, Any]]] = {}
        outbox = rows.tables.outbox
        quote = self._database.dialect.identifier_preparer.quote
        self._table, self._id, self._leader = (
            self._database.quoted(outbox),
            quote(rows.layout.order),
            quote("leader_id"),
        )

    def mark(
        self, limit: int, leader_id: str, *, held: ShardEpoch, without_topics: Collection[str] = ()
    ) -> list[OutboxRow]:
        """Take the lowest rows that bear another mark or none, mark them as *leader_id*'s, and return them in
        the order of their ids. All that it marks are returned: it skips them from then on.

        Raises FencedError when a newer leader has taken an epoch. After OutboxDatabaseError they may be
        marked all the same: mark again under another leader_id, which takes them.
        """
        topics = sorted(without_topics)
        sql, own = self._texts.get(len(topics)) or self._compiled(len(topics))
        named: dict[str, Any] = {f"topic_{index}": topic for index, topic in enumerate(topics)}
        named |= {"limit_rows": limit, "now_ms": self._rows.now_ms(), "me": leader_id}
        with self._database.transaction():
            self._rows.check(held)
            decode = self._rows.layout.decode
            found = [decode(raw) for raw in self._database.rows(sql, own | named)]
            ids = [row.id for row in found]
            marked = self._changed("UPDATE {table} SET {leader} = {me} WHERE {those}", ids, leader_id)
            if marked < len(ids):
                mine = set(self._mine(ids, leader_id))
                if any(row.id not in mine for row in self._rows.find(ids)):
                    raise self._refuses(f"marking {len(ids)} rows changed {marked}")
                found = [row for row in found if row.id in mine]  # who marked the others has deleted them
        self._rows.note_failing(found)
        return found

    def purge(self, ids: Collection[int], leader_id: str) -> int:
        """Delete published rows that still bear the caller's mark, and return how many did."""
        done = self._changed("DELETE FROM {table} WHERE {those} AND {leader} = {me}", ids, leader_id)
        if done < len(ids) and (kept := self._mine(ids, leader_id)):
            raise OutboxDroppedError(self._rows.kept_text(kept[0], len(kept)))
        self._rows.forget_attempts(ids)
        return done

    def reset(self, ids: Collection[int], leader_id: str) -> int:
        """Take the caller's mark off rows that were not published, and return how many bore it."""
        given_back = "UPDATE {table} SET {leader} = NULL WHERE {those} AND {leader} = {me}"
        done = self._changed(given_back, ids, leader_id)
        if done < len(ids) and (kept := self._mine(ids, leader_id)):
            raise self._refuses(f"taking the mark off row {kept[0]} changed nothing")
        return done

    def _mine(self, ids: Collection[int], leader_id: str) -> list[int]:
        """Return which of *ids* bear the caller's mark."""
        return [row_id for row_id, mark in self._rows.marks(ids) if mark.lower() == leader_id]

    def _refuses(self, what: str) -> OutboxDroppedError:
        return OutboxDroppedError(
            f"{self._table}: {what}, and the database reported no error: a trigger, a rule or row security"
            " drops the UPDATE of leader_id, by which strategy mark works. Remove it (`holdfast outbox check`"
            " names it), and start the harvesters again"
        )

    def _changed(self, sql: str, ids: Collection[int], leader_id: str) -> int:
        """Return how many rows of *ids* a statement changed."""
        listed, changed = list(ids), 0
        for at in range(0, len(listed), LIMIT_IDS):
            those = self._among(listed[at : at + LIMIT_IDS])
            named = {"table": self._table, "leader": self._leader, "me": self._mark(), "those": those}
            changed += self._database.count(sql.format(**named), {"me": leader_id})
        return changed

    def _among(self, ids: Collection[int]) -> str:
        return f"{self._id} IN ({', '.join(map(str, ids)) or 'NULL'})"

    def _mark(self) -> str:
        match self._database.name:
            case "sqlite":
                return ":me"
            case "postgresql":
                return "%(me)s::uuid"
            case _:
                return "%(me)s"

    def _compiled(self, topics: int) -> tuple[str, dict[str, Any]]:
        rows = self._rows
        outbox, mine = rows.tables.outbox, rows.tables.attempts.alias("mine")
        order, leader = outbox.c[rows.layout.order], outbox.c.leader_id
        statement = (
            select(*rows.layout.selection(outbox), func.coalesce(mine.c.attempts, literal_column("0")))
            .select_from(outbox.outerjoin(mine, mine.c.id == order))
            .where(*rows.takeable(outbox, mine, (False, False), True, 0, topics))
            .where(or_(leader.is_(None), leader != bindparam("me", type_=leader.type)))
            .order_by(order)
            .limit(bindparam("limit_rows"))
        )
        if self._database.name in MYSQL:  # a read without a lock may be older than the rows that are changed
            statement = statement.with_for_update()
        found = self._texts[topics] = self._database.compile(statement)
        return found
