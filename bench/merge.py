"""What several sources cost: `python -P -m bench.merge`. Pure folding over a store in memory.

A table of customers and a stream of orders, joined in one step: of two sources, merged; and, beside it, the
same records of one source that holds both kinds. Then merging alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random

import msgspec

from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.processor import Emit, Processor
from holdfast.core.engine.declared.serdes import Msgpack
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.merge.merging import Merger
from holdfast.core.engine.positions import start_of
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows

RECORDS = 200_000
TRANSACTION = 5_000
FETCHED = 500
CUSTOMERS = 2_000
ROUNDS = 5


class Customer(msgspec.Struct, frozen=True, array_like=True, tag=True):
    number: str
    name: str


class MergedOrder(msgspec.Struct, frozen=True, array_like=True, tag=True):
    number: int
    customer: str


class Known(msgspec.Struct, frozen=True, array_like=True):
    name: str
    orders: int = 0


def keep(rows: Rows[Known], customer: Customer, at_ms: int) -> None:
    before = rows.get(customer.number)
    rows[customer.number] = Known(customer.name, before.orders if before else 0)


def enrich(rows: Rows[Known], order: MergedOrder, at_ms: int) -> tuple[Emit, ...]:
    who = rows.get(order.customer)
    if who is None:
        return ()
    rows[order.customer] = Known(who.name, who.orders + 1)
    return (Emit("enriched", order.customer, who.name.encode()),)


def either(rows: Rows[Known], event: Customer | MergedOrder, at_ms: int) -> tuple[Emit, ...] | None:
    if isinstance(event, MergedOrder):
        return enrich(rows, event, at_ms)
    keep(rows, event, at_ms)
    return None


customers, orders = Source("customers", Msgpack(Customer)), Source("orders", Msgpack(MergedOrder))
JOINED: Processor[object, Known] = Processor(
    name="enrich", on={customers: keep, orders: enrich}, row=Known, emits=("enriched",)
)
ONE: Processor[Customer | MergedOrder, Known] = Processor(
    name="enrich",
    source="both",
    decode=Msgpack(Customer | MergedOrder).decode,
    fold=either,
    row=Known,
    emits=("enriched",),
)

Kept = list[tuple[int, int, bytes]]


def written() -> Kept:
    """Return (source, append time, value) of the records, one in five a customer."""
    rng, out = Random(1), []
    for number in range(RECORDS):
        who = f"customer-{rng.randrange(CUSTOMERS)}"
        event = MergedOrder(number, who) if number % 5 else Customer(who, f"name {number}")
        out.append((int(number % 5 > 0), 1_700_000_000_000 + number // 5, msgspec.msgpack.encode(event)))
    return out


def batches(records: Kept) -> list[Batch]:
    """Return *records* as they are fetched of one partition."""
    return [
        Batch(range(at, at + len(part)), [each[1] for each in part], ([each[2] for each in part],))
        for at in range(0, len(records), FETCHED)
        if (part := records[at : at + FETCHED])
    ]


def transactions(records: Kept) -> Iterator[tuple[int, list[Batch]]]:
    """Yield the batches of each source, a transaction's worth at a time."""
    logs = [batches([each for each in records if each[0] == source]) for source in (0, 1)]
    for at in range(RECORDS // TRANSACTION):
        for source, log in enumerate(logs):
            share = len(log) * TRANSACTION // RECORDS
            yield source, log[at * share : (at + 1) * share]


def one(records: Kept) -> Callable[[], None]:
    log = batches(records)
    step = TRANSACTION // FETCHED

    def run() -> None:
        store = DictStore()
        folder: Folder[Known] = Folder(ONE, store)
        for at in range(0, len(log), step):
            changes = folder.fold(log[at : at + step])
            assert changes is not None
            store.apply(changes.puts)
            folder.commit()
        assert folder.marker.applied[0] == RECORDS - 1

    return run


def two(records: Kept, *, fold: bool) -> Callable[[], None]:
    offered = list(transactions(records))

    def run() -> None:
        store = DictStore()
        folder: Folder[Known] = Folder(JOINED, store)
        merger, done = Merger(start_of(JOINED)), 0
        for source, parts in offered:
            for batch in parts:
                merger.offer(source, batch)
            if source == 0:
                continue
            stretches = iter(partial(merger.take, None), None)
            if fold:
                changes = folder.fold(stretches)
                if changes is not None:
                    assert not changes.choices
                    done += changes.records
                    store.apply(changes.puts)
                    folder.commit()
                    merger.settle(folder.marker)
            else:
                done += sum(stretch.records for stretch in stretches)
                merger.forget_taken()
        assert done > RECORDS * 0.99  # the end of one source waits for the other

    return run


def best_s(runs: list[Callable[[], None]]) -> list[float]:
    """Return the least processor time of each, taken in turns: others work on this machine too."""
    out = [float("inf")] * len(runs)
    for _ in range(ROUNDS):
        for at, run in enumerate(runs):
            began_s = time.process_time()
            run()
            out[at] = min(out[at], time.process_time() - began_s)
    return out


def main() -> None:
    records = written()
    alone_s, merged_s, merging_s = best_s([one(records), two(records, fold=True), two(records, fold=False)])
    print(f"one source:          {RECORDS / alone_s:9,.0f} records/s")
    print(
        f"two sources, merged: {RECORDS / merged_s:9,.0f} records/s, {merged_s / alone_s:.2f} times the time"
    )
    print(f"merging alone:       {merging_s / RECORDS * 1e6:9.2f} us a record")


if __name__ == "__main__":
    main()
