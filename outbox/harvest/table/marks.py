"""goharvest's marks: the table's own column `leader_id` names the leader of a row.

Marking, purging and resetting are one transaction each. A mark counts only for the leader that holds the
shard's newest epoch in the lease table, so of two of our processes that both believe to lead, one is refused;
purges and resets touch nothing but the caller's own marks, so that a late one cannot take a row from under
its successor.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Select, bindparam, func, literal_column, or_, select, update

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
        self._peeks: dict[int, tuple[str, dict[str, Any]]] = {}
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
        the order of their ids.

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
            if not self._database.is_postgres:  # there, they were marked by the same statement
                for at in range(0, len(found), LIMIT_IDS):
                    ids = [row.id for row in found[at : at + LIMIT_IDS]]
                    marked = self._database.count(
                        f"UPDATE {self._table} SET {self._leader} = {self._mark()} WHERE {self._among(ids)}",
                        {"me": leader_id},
                    )
                    if marked < len(ids):  # they are locked: no other program took one away
                        raise self._refuses(f"marking {len(ids)} rows changed {marked}")
        if not found and self._database.is_postgres and self._cannot_mark(own | named, len(topics)):
            raise self._refuses("marking the lowest rows changed none")
        found.sort(key=lambda row: row.id)
        self._rows.note_failing(found)
        return found

    def purge(self, ids: Collection[int], leader_id: str) -> int:
        """Delete published rows that still bear the caller's mark, and return how many did."""
        done = self._guarded("DELETE FROM {table} WHERE {those}", ids, leader_id)
        if done < len(ids) and (kept := self._mine(ids, leader_id)):
            raise OutboxDroppedError(self._rows.kept_text(kept[0], len(kept)))
        self._rows.forget_attempts(ids)
        return done

    def reset(self, ids: Collection[int], leader_id: str) -> int:
        """Take the caller's mark off rows that were not published, and return how many bore it."""
        done = self._guarded("UPDATE {table} SET {leader} = NULL WHERE {those}", ids, leader_id)
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

    def _cannot_mark(self, named: dict[str, Any], topics: int) -> bool:
        """Return whether rows that can be taken stay unmarked: seen twice, since one may just have been
        written.
        """
        sql, own = self._peeks.get(topics) or self._peek(topics)
        given = own | {name: value for name, value in named.items() if f"({name})s" in sql}
        seen = self._database.rows(sql, given)
        if not seen or self._database.rows(self._texts[topics][0], named):
            return False
        return bool(set(seen) & set(self._database.rows(sql, given)))

    def _peek(self, topics: int) -> tuple[str, dict[str, Any]]:
        found = self._peeks[topics] = self._database.compile(self._chosen(topics, only_ids=True))
        return found

    def _guarded(self, sql: str, ids: Collection[int], leader_id: str) -> int:
        listed, done = list(ids), 0
        for at in range(0, len(listed), LIMIT_IDS):
            those = f"{self._among(listed[at : at + LIMIT_IDS])} AND {self._leader} = {self._mark()}"
            done += self._database.count(
                sql.format(table=self._table, leader=self._leader, those=those), {"me": leader_id}
            )
        return done

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

    def _chosen(self, topics: int, *, only_ids: bool) -> Select[Any]:
        rows = self._rows
        outbox, mine = rows.tables.outbox, rows.tables.attempts.alias("mine")
        order, leader = outbox.c[rows.layout.order], outbox.c.leader_id
        attempts = func.coalesce(mine.c.attempts, literal_column("0"))
        me = bindparam("me", type_=leader.type)
        return (
            select(*([order] if only_ids else [*rows.layout.selection(outbox), attempts]))
            .select_from(outbox.outerjoin(mine, mine.c.id == order))
            .where(*rows.takeable(outbox, mine, (False, False), True, 0, topics))
            .where(or_(leader.is_(None), leader != me))
            .order_by(order)
            .limit(bindparam("limit_rows"))
        )

    def _compiled(self, topics: int) -> tuple[str, dict[str, Any]]:
        rows = self._rows
        outbox = rows.tables.outbox
        order, me = outbox.c[rows.layout.order], bindparam("me", type_=outbox.c.leader_id.type)
        is_postgres = self._database.is_postgres
        chosen = self._chosen(topics, only_ids=is_postgres)
        statement: Any
        # by an array: a join's plan may read the whole table, which is right for its statistics and wrong for
        # a backlog
        if is_postgres:
            lowest, failed = chosen.subquery("lowest"), rows.tables.attempts.alias("failed")
            marked: Any = rows.tables.outbox.alias("marked")
            place = marked.c[order.name]
            ids = func.any(func.array(select(lowest.c[order.name]).scalar_subquery()))
            known = select(failed.c.attempts).where(failed.c.id == place).scalar_subquery()
            statement = update(marked).values({marked.c.leader_id: me}).where(place == ids)
            statement = statement.returning(
                *rows.layout.selection(marked), func.coalesce(known, literal_column("0"))
            )
        else:
            statement = chosen.with_for_update(of=None if self._database.name in MYSQL else outbox)
        found = self._texts[topics] = self._database.compile(statement)
        return found
