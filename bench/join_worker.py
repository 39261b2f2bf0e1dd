"""The worker of `bench.joins`: holdfast's own, with the clock of `bench.worker`.

    BENCH_FOLD=join|hops BENCH_RECORDS=N BENCH_ORDERS=T BENCH_CUSTOMERS=T python -P -m bench.join_worker
    worker -l warn

`join` folds both topics in one step; `hops` merges them into one topic, which a second processor folds.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from bench.worker import FOLD, measure
from holdfast import Bytes, Json, Source, Stream
from holdfast.agents.app import create_app
from holdfast.config import Settings, settings_from_environment
from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import Emits, Processor
from holdfast.core.engine.state.rows import Rows
from holdfast.streams import JoinStreamTable, Merge


class Customer(msgspec.Struct, frozen=True, gc=False):
    name: str


class Purchase(msgspec.Struct, frozen=True, gc=False):
    id: int
    cents: int


class Enriched(msgspec.Struct, frozen=True, gc=False):
    id: int
    cents: int
    name: str


def join(order: Purchase, customer: Customer) -> Enriched:
    return Enriched(order.id, order.cents, customer.name)


def out_of(settings: Settings) -> str:
    """Return the topic that a worker of these settings sends to."""
    return f"{settings.app}-out"


def one_step(orders: str, customers: str, out: str) -> list[Processor[Any, Any]]:
    """Return the join of two sources."""
    return [
        JoinStreamTable(
            name="join",
            stream=Source(orders, Json(Purchase)),
            table=Source(customers, Json(Customer)),
            join=join,
            to=Stream(out, Json(Enriched)),
        )
    ]


def two_hops(orders: str, customers: str, out: str) -> list[Processor[Any, Any]]:
    """Return what a join was before processors had several sources."""

    order_of, customer_of = msgspec.json.Decoder(Purchase).decode, msgspec.json.Decoder(Customer).decode
    enriched = Stream(out, Json(Enriched))

    def decode(value: bytes, key: bytes) -> tuple[str, Purchase | Customer]:
        return key.decode(), (order_of if value.startswith(b'{"id"') else customer_of)(value)

    def fold(rows: Rows[Customer], told: tuple[str, Purchase | Customer], at_ms: int) -> Emits:
        key, value = told
        if isinstance(value, Customer):
            rows[key] = value
            return None
        customer = rows.get(key)
        return None if customer is None else (enriched.emit(key, join(value, customer)),)

    sources = [Source(customers, Bytes()), Source(orders, Bytes())]
    merged = Merge(name="merged", sources=sources, to=Stream(f"{out}-merged", Bytes()))
    joined: Processor[Any, Any] = Processor(
        name="join",
        source=f"{out}-merged",
        decode=decode,
        inputs=("value", "key"),
        fold=fold,
        row=Customer,
        route=by_key,
        emits=(enriched,),
    )
    return [merged, joined]


def declared(fold: str, settings: Settings, orders: str, customers: str) -> list[Processor[Any, Any]]:
    """Return the processors of a worker."""
    return (one_step if fold == "join" else two_hops)(orders, customers, out_of(settings))


if __name__ == "__main__":
    measure()
    found = settings_from_environment()
    create_app(declared(FOLD, found, os.environ["BENCH_ORDERS"], os.environ["BENCH_CUSTOMERS"]), found).main()
