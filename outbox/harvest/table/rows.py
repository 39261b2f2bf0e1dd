"""A harvester's operations on the rows of an outbox: take the lowest, delete the published, set aside those
that Kafka refuses.

Why no row can be skipped: ids are given at INSERT and become visible at COMMIT, so a lower id may appear
after a higher one was published. Nothing here remembers how far it came: `take` asks for the lowest rows that
are there, published rows are gone, and a late one is simply the lowest next time. Rows of one key that must
be in order come from transactions that follow each other (the second reads what the first wrote, so it began
after that commit), and those take their ids in that order.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Self

import msgspec
from sqlalchemy import (
    ColumnElement,
    LargeBinary,
    Text,
    and_,
    bindparam,
    cast,
    exists,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.engine.url import URL

from holdfast.clock import Clock, system_clock
from holdfast.errors import FencedError, OutboxDatabaseError, OutboxDroppedError
from holdfast.outbox.harvest.table.numbering import Noted, Numbering
from holdfast.outbox.harvest.table.row_types import (
    OutboxStatus,
    QuarantinedRow,
    ShardEpoch,
    ShardLeader,
    ShardStop,
)
from holdfast.outbox.schema.database import Database
from holdfast.outbox.schema.layouts import BUCKETS, Layout, OutboxRow, identity_of
from holdfast.outbox.schema.tables import OutboxTables, outbox_tables
from holdfast.outbox.schema.wakeup import Wakeup

LIMIT_REASON: Final = 2_000
LIMIT_COUNTED: Final = 1_000_000
LIMIT_IDS: Final = 10_000  # of one statement
STOPS: Final = -1_000
"""The lease table has the stop of a shard in a row of the number STOPS - shard."""
LIMIT_WHY: Final = 255

Ends = tuple[bool, bool]
"""Return values: whether a range of buckets begins above bucket 0, and whether it ends below the last. A
number that is no bucket at all is below the one or above the other: some shard has to take it, or it would
wait in silence.
"""


class OutboxRows:
    """The rows of one outbox, over one connection of its own. For one thread at a time; `interrupt` may come
    from any.

    Every call is one statement (or one short transaction) in autocommit mode, and raises
    `OutboxDatabaseError`; all may be repeated.
    """

    def __init__(
        self,
        url: str | URL,
        *,
        table: str = "outbox",
        layout: str | Layout = "holdfast",
        clock: Clock = system_clock,
        database: Database | None = None,
    ) -> None:
        self.database = Database(url) if database is None else database
        self.tables: OutboxTables = outbox_tables(layout, table, dialect=self.database.name)
        self.layout = self.tables.layout
        self._clock = clock
        self._takes: dict[tuple[bool, Ends, bool, int, int, bool], tuple[str, dict[str, Any]]] = {}
        self._failing: set[int] = set()  # ids that may have a row in the attempts table
        self._outbox, self._attempts, self._quarantine, self._lease = map(
            self.database.quoted, self.tables.every
        )
        self._is_sqlite = self.database.name == "sqlite"
        quote = self.database.dialect.identifier_preparer.quote
        self._order = quote(self.layout.order)
        self._columns = [quote(column.name) for column in self.tables.outbox.columns]
        created = self.layout.created(self.tables.outbox)
        self._created = None if created is None else self.database.text(created)
        self.numbering = Numbering(self.database, self.tables.outbox, self.layout.order)

    # --- taking ---------------------------------------------------------------------------------------------

    def take(
        self,
        limit: int,
        *,
        after_id: int | None = None,
        buckets: range | None = None,
        excluding: Collection[bytes] = (),
        without_topics: Collection[str] = (),
        expecting: int | None = None,
        hold_keys: bool = True,
    ) -> list[OutboxRow]:
        """Return at most *limit* rows in the order of their ids: the lowest, or the lowest above *after_id*.

        *buckets* are those of a shard (a range of step 1); the first and the last shard also take rows
        without a valid bucket, as rows with a flaw. Left out are rows of the keys *excluding*, rows that
        failed and are not due yet and, with *hold_keys*, all later rows of their topic and key.

        *expecting* makes it safe to take rows above *after_id* while those up to it are in flight: nothing is
        returned unless exactly that many rows up to *after_id* would be taken in the same look at the table.
        Another one there has become visible late or fallen due again, and rows above it may have to follow
        it.
        """
        named: dict[str, Any] = {"limit_rows": limit, "now_ms": self._clock.now_ms()}
        if after_id is not None:
            named["after_id"] = after_id
        ends = (False, False) if buckets is None else (buckets.start > 0, buckets.stop < BUCKETS)
        if buckets is not None:
            named |= {"bucket_low": buckets.start, "bucket_stop": buckets.stop}
        keys = sorted(excluding)
        if keys:  # in powers of two, so that there are few texts of the statement
            keys += keys[-1:] * ((1 << (len(keys) - 1).bit_length()) - len(keys))
            as_text = self.layout.name != "holdfast" and not self._is_sqlite
            named |= {f"key_{index}": key.decode() if as_text else key for index, key in enumerate(keys)}
        topics = sorted(map(self._stored_topic, without_topics))
        named |= {f"topic_{index}": topic for index, topic in enumerate(topics)}
        if expecting is not None:
            named["expecting"] = expecting
        shape = (
            after_id is not None,
            ends,
            hold_keys,
            len(keys),
            len(topics),
            expecting is not None,
        )
        found = self._takes.get(shape)
        if found is None:
            found = self._takes[shape] = self.database.compile(self._take(*shape))
        sql, own = found
        decode = self.layout.decode
        rows = [decode(raw) for raw in self.database.rows(sql, own | named)]
        if buckets is not None:
            rows = [row if 0 <= row.bucket < BUCKETS else _of_no_shard(row) for row in rows]
        self.note_failing(rows)
        return rows

    def now_ms(self) -> int:
        """Return the time by which rows that failed fall due."""
        return self._clock.now_ms()

    def note_failing(self, rows: Iterable[OutboxRow]) -> None:
        """Remember which of *rows* have failed before, so that their attempts are forgotten once they are
        published.
        """
        self._failing.update(row.id for row in rows if row.attempts)

    def _take(
        self,
        with_after: bool,
        ends: Ends,
        hold_keys: bool,
        excluded: int,
        topics: int,
        expecting: bool,
    ) -> Any:
        outbox, mine = self.tables.outbox, self.tables.attempts.alias("mine")
        order = outbox.c[self.layout.order]
        shape = (ends, hold_keys, excluded, topics)
        statement = (
            select(*self.layout.selection(outbox), func.coalesce(mine.c.attempts, literal_column("0")))
            .select_from(outbox.outerjoin(mine, mine.c.id == order))
            .where(*self.takeable(outbox, mine, *shape))
            .order_by(order)
            .limit(bindparam("limit_rows"))
        )
        if with_after:
            statement = statement.where(order > bindparam("after_id", type_=order.type))
        if expecting:
            before, theirs = outbox.alias("before_it"), self.tables.attempts.alias("theirs")
            place = before.c[self.layout.order]
            seen = (
                select(func.count())
                .select_from(before.outerjoin(theirs, theirs.c.id == place))
                .where(
                    place <= bindparam("after_id", type_=order.type), *self.takeable(before, theirs, *shape)
                )
            )
            statement = statement.where(seen.scalar_subquery() == bindparam("expecting", type_=order.type))
        return statement

    def takeable(
        self, outbox: Any, mine: Any, ends: Ends, hold_keys: bool, excluded: int, topics: int
    ) -> list[Any]:
        """Return the conditions under which a row of *outbox*, with its failed attempts in *mine*, may be
        taken.
        """
        layout, other = self.layout, self.tables.attempts.alias("other")
        order, topic, key = outbox.c[layout.order], outbox.c[layout.topic], outbox.c[layout.key]
        now = bindparam("now_ms", type_=mine.c.next_attempt_ms.type)
        conditions: list[Any] = [or_(mine.c.id.is_(None), mine.c.next_attempt_ms <= now)]
        if layout.sharded:
            conditions += _within(outbox.c.bucket, ends)
        if hold_keys:
            earlier = and_(
                self._plain(other.c.topic) == self._plain(topic),
                self._plain(other.c.key) == self._plain(key),
                other.c.id < order,
                other.c.next_attempt_ms > now,
            )
            conditions.append(~exists().select_from(other).where(earlier))
        if excluded:
            same = self._plain(key)
            listed = [bindparam(f"key_{index}", type_=same.type) for index in range(excluded)]
            conditions.append(or_(key.is_(None), same.not_in(listed)))
        if topics:
            named = cast(topic, Text()) if self._is_sqlite else topic
            conditions.append(
                named.not_in([bindparam(f"topic_{index}", type_=topic.type) for index in range(topics)])
            )
        return conditions

    def _plain(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return *column* so that text is equal to the same text given as bytes, which SQLite keeps apart."""
        return cast(column, LargeBinary()) if self._is_sqlite else column

    def marks(self, ids: Collection[int] | None = None) -> list[tuple[int, str]]:
        """Return id and mark of the rows that bear one, of *ids* or of the whole table; none where the
        layout has no marks.
        """
        outbox = self.tables.outbox
        if "leader_id" not in outbox.c:
            return []
        order, leader = outbox.c[self.layout.order], outbox.c.leader_id
        found: list[Any] = []
        for some in _parts(ids) if ids is not None else [None]:
            statement = select(order, leader).where(leader.is_not(None)).order_by(order).limit(LIMIT_COUNTED)
            if some is not None:
                statement = statement.where(literal_column(f"{self._order} IN ({_listed(some)})"))
            found += self.database.rows(self.database.text(statement))
        return [(int(id_), str(mark)) for id_, mark in found]

    # --- what became of a row -------------------------------------------------------------------------------

    def delete(self, rows: Collection[int] | Collection[OutboxRow]) -> int:
        """Delete rows that were published, and return how many of them were there; one statement for up to
        10,000.

        A row that is given whole is deleted only if it was created when the given one was: numbers may have
        begun again since. Compare the count, and see `require_gone`.
        """
        whole = [each for each in rows if isinstance(each, OutboxRow)]
        ids = [each for each in rows if not isinstance(each, OutboxRow)]
        deleted = sum(self._delete(self._outbox, self._order, some) for some in _parts(ids))
        for at in range(0, len(whole), LIMIT_IDS):
            deleted += self._delete_whole(whole[at : at + LIMIT_IDS])
        self.forget_attempts([*ids, *(each.id for each in whole)])
        return deleted

    def _delete_whole(self, rows: Sequence[OutboxRow]) -> int:
        timed = [row for row in rows if row.created_ms is not None and self._created is not None]
        events = [row for row in rows if row.created_ms is None and _is_plain(row.event_id)]
        done = {row.id for row in (*timed, *events)}
        deleted = 0
        if timed:
            times = [row.created_ms or 0 for row in timed]
            within = f"{self._created} BETWEEN {self._mark_of('low')} AND {self._mark_of('high')}"
            named = {"low": min(times), "high": max(times)}
            deleted += self._delete(self._outbox, self._order, [row.id for row in timed], within, named)
        if events:
            ids = [row.event_id or "" for row in events]
            own = [row.id for row in events]
            column = self.database.text(cast(self.tables.outbox.c.id, Text()))
            if self.database.is_postgres:
                among, given = f"{column} = ANY(%(events)s::text[])", {"events": ids}
            else:
                column = self.database.dialect.identifier_preparer.quote("id")
                among, given = f"{column} IN ({', '.join(map(_quoted, ids))})", {}
                if self.database.dialect.name == "sqlite":  # a number or blob is not the text read of it
                    among = f"({among} OR typeof({column}) <> 'text')"
            deleted += self._delete(self._outbox, self._order, own, among, given)
        if len(done) < len(rows):  # of rows that say nothing of when they were created
            deleted += self._delete(self._outbox, self._order, [row.id for row in rows if row.id not in done])
        return deleted

    def find(self, ids: Collection[int]) -> list[OutboxRow]:
        """Return the rows of these numbers that are in the table, whatever they hold now."""
        table, found = self.tables.outbox, list[OutboxRow]()
        statement = self.database.text(
            select(*self.layout.selection(table), literal_column("0")).where(literal_column("1 = 1"))
        )
        for some in _parts(ids):
            raw = self.database.rows(f"{statement} AND {self._order} IN ({_listed(some)})")
            found += map(self.layout.decode, raw)
        return found

    def highest(self) -> int:
        """Return the highest number of a row in the table, 0 for none."""
        ((found,),) = self.database.rows(f"SELECT max({self._order}) FROM {self._outbox}")
        return int(found or 0)

    def above(self, number: int, limit: int) -> list[OutboxRow]:
        """Return the lowest rows above *number*, whatever they hold."""
        table = self.tables.outbox
        statement = self.database.text(
            select(*self.layout.selection(table), literal_column("0")).where(literal_column("1 = 1"))
        )
        raw = self.database.rows(
            f"{statement} AND {self._order} > {int(number)} ORDER BY {self._order} LIMIT {int(limit)}"
        )
        return [*map(self.layout.decode, raw)]

    def require_gone(self, rows: Collection[OutboxRow]) -> list[OutboxRow]:
        """Look whether rows that were deleted are gone, and return the rows that have taken their numbers.

        OutboxDroppedError when one of them is still there: the database deletes it without effect.
        """
        deleted = {row.id: identity_of(row) for row in rows}
        there = self.find(deleted)
        kept = [row for row in there if identity_of(row) == deleted[row.id]]
        if kept:
            raise OutboxDroppedError(self.kept_text(kept[0].id, len(kept)))
        return there

    def kept_text(self, row_id: int, rows: int) -> str:
        """Return the message about rows that stay in the table although they are deleted."""
        return (
            f"row {row_id} of {self._outbox}"
            + (f" and {rows - 1} others were" if rows > 1 else " was")
            + " published and deleted, and the database reported no error, but still has"
            + (" them" if rows > 1 else " it")
            + ": a trigger, a rule or row security undoes the DELETE. Nothing more is published, since the"
            " rows would be published for ever. Remove what undoes it (`holdfast outbox check` tries a"
            " delete and names it), delete the published rows, and run `holdfast outbox resume`"
        )

    def forget_attempts(self, ids: Collection[int]) -> None:
        """Forget the failed attempts of rows that are gone."""
        if self._failing and (healed := self._failing.intersection(ids)):
            for some in _parts(healed):
                self._delete(self._attempts, "id", some)
            self._failing -= healed

    def _delete(
        self,
        table: str,
        column: str,
        ids: Sequence[int],
        condition: str | None = None,
        named: dict[str, Any] | None = None,
    ) -> int:
        also = "" if condition is None else f" AND {condition}"
        if self.database.is_postgres:
            return self.database.count(
                f"DELETE FROM {table} WHERE {column} = ANY(%(ids)s::bigint[]){also}",
                {"ids": list(ids), **(named or {})},
            )
        return self.database.count(
            f"DELETE FROM {table} WHERE {column} IN ({_listed(ids)}){also}", named or {}
        )

    def _mark_of(self, name: str) -> str:
        return f":{name}" if self._is_sqlite else f"%({name})s"

    def forget_all_attempts(self) -> None:
        """Forget every failed attempt: numbers began again, and attempts are noted by number."""
        self.database.count(f"DELETE FROM {self._attempts} WHERE id >= 0")
        self._failing.clear()

    def attempt_failed(
        self, row: OutboxRow, reason: str, retry_at_ms: int, *, held: ShardEpoch | None = None
    ) -> int:
        """Record that *row* could not be published, and return how many attempts have failed now; it is not
        taken before *retry_at_ms*.

        FencedError, and nothing is recorded, when *held* is not the newest epoch of its shard: the row is its
        successor's.
        """
        attempts = row.attempts + 1
        self._failing.add(row.id)
        key = row.key if row.key is None or self.layout.name == "holdfast" else self._key_text(row.key)
        named = {
            "id": row.id,
            "topic": self._stored_topic(row.topic),
            "key": key,
            "attempts": attempts,
            "last_error": reason[:LIMIT_REASON],
            "next_attempt_ms": retry_at_ms,
        }
        changed = ("attempts", "last_error", "next_attempt_ms")
        sql = self._upsert(self._attempts, "id", named, {name: self._given(name) for name in changed})
        with self.database.transaction():
            self.check(held)
            self._note_attempt(sql, named)
        return attempts

    def _note_attempt(self, sql: str, named: dict[str, Any]) -> None:
        self.database.count(sql, named)
        noted = self.database.rows(f"SELECT attempts FROM {self._attempts} WHERE id = {int(named['id'])}")
        if [int(each[0]) for each in noted] != [named["attempts"]]:
            what = f"the failed attempt of row {named['id']}"
            raise self._dropped(self._attempts, what, "INSERT or UPDATE")

    def _key_text(self, key: bytes) -> str | bytes:
        """Return *key* as a column of text holds it: SQLite's may hold bytes that are no text."""
        if self._is_sqlite:
            with contextlib.suppress(UnicodeDecodeError):
                return key.decode()
            return key
        return key.decode(errors="replace")

    def retry_now(self) -> int:
        """Let every row that failed be taken again now, and return how many there are."""
        return self.database.count(
            f"UPDATE {self._attempts} SET next_attempt_ms = 0 WHERE next_attempt_ms <> 0"
        )

    def _stored_topic(self, topic: str) -> str:
        prefix: str = getattr(self.layout, "topic_prefix", "")
        return topic.removeprefix(prefix)

    def _upsert(self, table: str, key: str, named: Collection[str], updates: dict[str, str]) -> str:
        quote = self.database.dialect.identifier_preparer.quote
        marks = [f":{name}" if self.database.name == "sqlite" else f"%({name})s" for name in named]
        sets = ", ".join(f"{quote(name)} = {value}" for name, value in updates.items())
        clash = (
            f"ON CONFLICT ({quote(key)}) DO UPDATE SET"
            if self.database.name in ("postgresql", "sqlite")
            else "ON DUPLICATE KEY UPDATE"
        )
        return (
            f"INSERT INTO {table} ({', '.join(map(quote, named))}) VALUES ({', '.join(marks)}) {clash} {sets}"
        )

    def _given(self, name: str) -> str:
        quoted = self.database.dialect.identifier_preparer.quote(name)
        return f"excluded.{quoted}" if self.database.name in ("postgresql", "sqlite") else f"VALUES({quoted})"

    def set_aside(self, row: OutboxRow, reason: str, *, held: ShardEpoch | None = None) -> bool:
        """Move *row* to the quarantine with *reason*, in one transaction; False when it was not there any
        more.

        FencedError, and the row stays, when *held* is not the newest epoch of its shard: its successor may be
        publishing the row.
        """
        try:
            moved = self._set_aside(row, reason, row.id, held)
        except OutboxDatabaseError as error:
            if not isinstance(error.__cause__, self.database.dialect.loaded_dbapi.IntegrityError):
                raise
            # Numbers began again, and another row of this one was set aside before.
            number = self._clock.now_ms() * 1_000 + row.id % 1_000
            told = f"{reason[: LIMIT_REASON - 60]} (row {row.id} of the outbox)"
            moved = self._set_aside(row, told, number, held)
        self._failing.discard(row.id)
        return moved

    def _set_aside(self, row: OutboxRow, reason: str, number: int, held: ShardEpoch | None) -> bool:
        with self.database.transaction():
            self.check(held)
            return self._moved_aside(row, reason, number)

    def _moved_aside(self, row: OutboxRow, reason: str, number: int) -> bool:
        columns, mark = self._columns, self._mark_of
        named = {
            "attempts": row.attempts,
            "reason": reason[:LIMIT_REASON],
            "quarantined_ms": self._clock.now_ms(),
            "id": row.id,
        }
        values = [str(number) if each == self._order and number != row.id else each for each in columns]
        moved = self.database.count(
            f"INSERT INTO {self._quarantine} ({', '.join(columns)}, attempts, reason, quarantined_ms)"
            f" SELECT {', '.join(values)}, {mark('attempts')}, {mark('reason')}, {mark('quarantined_ms')}"
            f" FROM {self._outbox} WHERE {self._order} = {mark('id')}",
            named,
        )
        deleted = self._delete(self._outbox, self._order, [row.id])
        if moved < deleted:
            raise self._dropped(self._quarantine, f"row {row.id}", "INSERT")
        if self.find([row.id]):
            raise self._dropped(self._outbox, f"row {row.id}", "DELETE")
        self._delete(self._attempts, "id", [row.id])
        return moved == 1

    def try_beside(self, row: OutboxRow) -> None:
        """Do to *row* and the other tables of the outbox what harvesters do, within a transaction that the
        caller rolls back. OutboxDroppedError or OutboxDatabaseError when something has no effect, or fails.
        """
        named = {
            "id": row.id,
            "topic": self._stored_topic(row.topic),
            "key": None,
            "attempts": row.attempts + 1,
            "last_error": "a trial",
            "next_attempt_ms": self._clock.now_ms(),
        }
        sets = {name: self._given(name) for name in ("attempts", "last_error", "next_attempt_ms")}
        self._note_attempt(self._upsert(self._attempts, "id", named, sets), named)
        self._moved_aside(row, "a trial", self._clock.now_ms() * 1_000)
        for _ in range(2):  # of a shard that had none, the first is an INSERT
            self._next_epoch(0, "a trial")

    def _dropped(self, table: str, what: str, statement: str) -> OutboxDroppedError:
        return OutboxDroppedError(
            f"{table} does not do what it reports: {statement} of {what} had no effect and no error, by a"
            " trigger, a rule or row security. `holdfast outbox check` names it; remove it, and run `holdfast"
            " outbox resume`"
        )

    # --- the quarantine -------------------------------------------------------------------------------------

    def quarantined(
        self, limit: int, *, after_id: int | None = None, ids: Collection[int] | None = None
    ) -> list[QuarantinedRow]:
        """Return at most *limit* rows that were set aside, in the order of their ids, of *ids* only when
        given.
        """
        table = self.tables.quarantine
        order = table.c[self.layout.order]
        statement = select(
            *self.layout.selection(table), table.c.attempts, table.c.reason, table.c.quarantined_ms
        )
        statement = statement.order_by(order).limit(limit)
        if after_id is not None:
            statement = statement.where(order > after_id)
        if ids is not None:
            statement = statement.where(order.in_(list(ids)))
        found = self.database.rows(self.database.text(statement))
        return [
            QuarantinedRow(row=self.layout.decode(raw[:-2]), reason=raw[-2], quarantined_ms=raw[-1])
            for raw in found
        ]

    def retry(self, ids: Collection[int]) -> int:
        """Put rows of the quarantine back at the end of the outbox, under new ids, and return how many
        there were.
        """
        names = [name for name in self._columns if name != self._order]
        columns = ", ".join(names)
        # leader_id is goharvest's mark: a row that comes back is unmarked.
        values = ", ".join("NULL" if name == "leader_id" else name for name in names)
        moved = 0
        for some in _parts(sorted(ids)):
            # Of two that put the same rows back, one fails: at its DELETE, or at a lock of the other.
            with self.database.transaction(snapshot=True):
                where = f"FROM {self._quarantine} WHERE {self._order} IN ({_listed(some)})"
                back = self.database.count(
                    f"INSERT INTO {self._outbox} ({columns}) SELECT {values} {where} ORDER BY {self._order}"
                )
                ((there,),) = self.database.rows(f"SELECT count(*) {where}")
                if back != there:
                    raise self._dropped(self._outbox, f"{there} row(s) from the quarantine", "INSERT")
                self._require_deleted(some)
                moved += back
        return moved

    def discard(self, ids: Collection[int]) -> int:
        """Delete rows of the quarantine for good, and return how many there were."""
        done = 0
        for some in _parts(sorted(ids)):
            with self.database.transaction():
                done += self._require_deleted(some)
        return done

    def _require_deleted(self, ids: Sequence[int]) -> int:
        """Delete rows of the quarantine, and return how many there were; OutboxDroppedError when some
        stay.
        """
        done = self._delete(self._quarantine, self._order, ids)
        left = self.database.rows(
            f"SELECT 1 FROM {self._quarantine} WHERE {self._order} IN ({_listed(ids)}) LIMIT 1"
        )
        if left:
            raise self._dropped(self._quarantine, f"{len(ids)} row(s)", "DELETE")
        return done

    # --- leases and status ----------------------------------------------------------------------------------

    def epoch(self, shard: int, leader: str) -> int:
        """Return the next epoch of *shard*, taken for *leader*: higher than any before, from 1."""
        with self.database.transaction():  # the row stays locked until it was read
            return self._next_epoch(shard, leader)

    def _next_epoch(self, shard: int, leader: str) -> int:
        named = {"shard": shard, "epoch": 1, "leader": leader[:255], "updated_ms": self._clock.now_ms()}
        sets = {
            "epoch": f"{self._lease}.epoch + 1",
            "leader": self._given("leader"),
            "updated_ms": self._given("updated_ms"),
        }
        asked = f"SELECT epoch, updated_ms FROM {self._lease} WHERE shard = {int(shard)}"
        before = max((int(each[0]) for each in self.database.rows(asked)), default=0)
        self.database.count(self._upsert(self._lease, "shard", named, sets), named)
        found = self.database.rows(asked)
        if [int(each[1]) for each in found] != [named["updated_ms"]] or int(found[0][0]) <= before:
            raise self._dropped(self._lease, f"the lease of shard {shard}", "INSERT or UPDATE")
        return int(found[0][0])

    def noted(self, shard: int) -> Noted:
        """Return the note about the numbers of *shard*; without a token if there is no note."""
        found = self.database.rows(f"SELECT epoch, leader FROM {self._lease} WHERE shard = {-1 - int(shard)}")
        return Noted.read(int(found[0][0]), _as_text(found[0][1])) if found else Noted(outbox="")

    def note(self, shard: int, noted: Noted) -> None:
        """Write the note about the numbers of *shard*."""
        named = {
            "shard": -1 - shard,
            "epoch": noted.highest,
            "leader": noted.packed(),
            "updated_ms": self._clock.now_ms(),
        }
        sets = {name: self._given(name) for name in ("epoch", "leader", "updated_ms")}
        self.database.count(self._upsert(self._lease, "shard", named, sets), named)

    def stopped(self, shard: int) -> ShardStop | None:
        """Return the stop of *shard*; None for one that may be published."""
        return next((each for each in self._stops() if each.shard == shard), None)

    def stop(self, shard: int, why: str) -> None:
        """Note that *shard* is not to be published, for all leaders to come; with "" that it is again."""
        named = {
            "shard": STOPS - shard,
            "epoch": 0,
            "leader": why[:LIMIT_WHY],
            "updated_ms": self._clock.now_ms(),
        }
        sets = {name: self._given(name) for name in ("leader", "updated_ms")}
        self.database.count(self._upsert(self._lease, "shard", named, sets), named)
        if ((found := self.stopped(shard)) is not None) != bool(why) or (
            found and found.why != named["leader"]
        ):
            raise self._dropped(self._lease, f"the stop of shard {shard}", "INSERT or UPDATE")

    def _stops(self) -> tuple[ShardStop, ...]:
        found = self.database.rows(
            f"SELECT shard, leader, updated_ms FROM {self._lease} WHERE shard <= {STOPS} ORDER BY shard DESC"
        )
        return tuple(
            ShardStop(shard=STOPS - int(shard), why=why, at_ms=int(at_ms))
            for shard, text, at_ms in found
            if (why := _as_text(text))
        )

    def check(self, held: ShardEpoch | None) -> None:
        """Within a transaction: raise FencedError unless *held* is the newest epoch of its shard, and keep it
        so until the end of it.

        A leader that slept through its succession is refused here, whatever it still believes. None means a
        person who runs a command.
        """
        if held is None:
            return
        lock = (
            "" if self.database.name == "sqlite" else " FOR UPDATE"
        )  # there, a transaction that writes is alone
        found = self.database.rows(f"SELECT epoch FROM {self._lease} WHERE shard = {int(held.shard)}{lock}")
        newest = int(found[0][0]) if found else 0
        if newest != held.epoch:
            raise FencedError(
                f"shard {held.shard} of {self._outbox}: epoch {newest} was taken after {held.epoch}; this"
                " process leads it no more"
            )

    def look(self) -> None:
        """Read what a leader reads first: a row with its attempts, and the leases; OutboxDatabaseError where
        that cannot be.
        """
        sql, own = self.database.compile(self._take(False, (False, False), True, 0, 0, False))
        self.database.rows(sql, own | {"limit_rows": 1, "now_ms": 0})
        self._leases()

    def lease(self, shard: int) -> ShardLeader | None:
        """Return the leader that took the last epoch of *shard*; None if the shard was never led."""
        return next((each for each in self._leases() if each.shard == shard), None)

    def _leases(self) -> tuple[ShardLeader, ...]:
        found = self.database.rows(
            f"SELECT shard, epoch, leader, updated_ms FROM {self._lease} WHERE shard >= 0 ORDER BY shard"
        )
        return tuple(
            ShardLeader(shard=shard, epoch=epoch, leader=leader, updated_ms=at_ms)
            for shard, epoch, leader, at_ms in found
        )

    def status(self) -> OutboxStatus:
        """Return the counts of waiting, failing and quarantined rows, and the leaders."""
        oldest = self.database.rows(self._oldest())
        row = self.layout.decode(oldest[0]) if oldest else None
        return OutboxStatus(
            waiting=self.count(),
            oldest_id=None if row is None else row.id,
            oldest_created_ms=None if row is None else row.created_ms,
            failing=self._counted(f"{self._attempts} WHERE id IN (SELECT {self._order} FROM {self._outbox})"),
            quarantined=self._counted(self._quarantine),
            leases=self._leases(),
            stops=self._stops(),
            numbers=self._numbers(),
        )

    def _numbers(self) -> str | None:
        """Return a remark on the rows' numbers; None while they only rise."""
        found = self.database.rows(
            f"SELECT epoch, leader FROM {self._lease} WHERE shard < 0 AND shard > {STOPS} ORDER BY shard DESC"
        )
        noted = [Noted.read(int(epoch), _as_text(packed)) for epoch, packed in found]
        highest = max((each.highest for each in noted), default=0)
        last = self.numbering.last_if_known()
        if last is not None and last < highest:
            return f"began again: row {highest} was published, and the last number given is {last}"
        again = max(noted, key=lambda each: each.again_ms, default=Noted(outbox=""))
        if again.again_ms and highest <= again.again_from:
            at = datetime.fromtimestamp(again.again_ms / 1000, UTC).isoformat(timespec="seconds")
            return f"began again: found at {at}, after row {again.again_from} was published"
        return None

    def _oldest(self) -> str:
        table = self.tables.outbox
        statement = (
            select(*self.layout.selection(table), literal_column("0"))
            .order_by(table.c[self.layout.order])
            .limit(1)
        )
        return self.database.text(statement)

    def count(self, *, limit: int = LIMIT_COUNTED) -> int:
        """Return how many rows wait, counted up to *limit*."""
        return self._counted(self._outbox, limit=limit)

    def _counted(self, source: str, *, limit: int = LIMIT_COUNTED) -> int:
        ((count,),) = self.database.rows(
            f"SELECT count(*) FROM (SELECT 1 FROM {source} LIMIT {int(limit)}) AS counted"
        )
        return int(count)

    # --- the connection -------------------------------------------------------------------------------------

    def wakeup(self) -> Wakeup | None:
        """Return a listener that is notified of new rows at their commit, on a connection of its own; None if
        the database cannot notify (poll then).
        """
        return Wakeup(self.database.url, self.tables.outbox) if self.database.is_postgres else None

    def interrupt(self) -> None:
        """Make a call that waits for the database fail now, and every later one."""
        self.database.interrupt()

    def close(self) -> None:
        """Close the connection."""
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _within(bucket: ColumnElement[Any], ends: Ends) -> Iterator[ColumnElement[bool]]:
    """Yield the conditions under which *bucket* lies within a range with these ends.

    NULL is below all numbers; SQLite sorts text and bytes above them, and 84.5 between two numbers.
    """
    begins_above, ends_below = ends
    stop = bindparam("bucket_stop", type_=bucket.type)
    if begins_above:
        yield bucket >= bindparam("bucket_low", type_=bucket.type)
    if ends_below:
        yield bucket < stop if begins_above else or_(bucket.is_(None), bucket < stop)


def _of_no_shard(row: OutboxRow) -> OutboxRow:
    """Return *row*, whose bucket is none, as one that cannot be published: rows of its key may be another
    shard's.
    """
    takes = f"numbers from 0 to {BUCKETS - 1}, by which shards share the rows"
    flaw = f"column bucket holds the number {row.bucket}; it takes {takes}"
    return msgspec.structs.replace(row, flaw=row.flaw or flaw)


_PLAIN = re.compile(r"[0-9A-Za-z-]{1,64}")


def _is_plain(event_id: str | None) -> bool:
    """Return whether an event's id can be written into a statement as it is, as any UUID can."""
    return event_id is not None and _PLAIN.fullmatch(event_id) is not None


def _quoted(event_id: str) -> str:
    return f"'{event_id}'"


def _as_text(found: Any) -> str:
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)


def _parts(ids: Iterable[int]) -> Iterator[list[int]]:
    listed = list(ids)
    yield from (listed[at : at + LIMIT_IDS] for at in range(0, len(listed), LIMIT_IDS))


def _listed(ids: Iterable[int]) -> str:
    return ", ".join(str(int(each)) for each in ids) or "NULL"
