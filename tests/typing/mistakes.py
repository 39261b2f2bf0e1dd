"""Mistakes, a function each, that a type checker finds where they are typed, or the declaration refuses.

Each function declares what a newcomer might, with one mistake in it.
"""

from __future__ import annotations

import msgspec
import pydantic

from holdfast import Emit, Global, Internal, Json, Processor, Rows, Source, Stream, Text
from holdfast.streams import (
    Branch,
    Filter,
    JoinStreamTable,
    JoinTables,
    JoinWithin,
    Map,
    Merge,
    Rekey,
    Session,
    Tumbling,
    Windowed,
    WindowResult,
    count,
    final,
    latest,
    reduce,
    total,
)
from holdfast.testing import Topology
from tests.typing.correct import Order, Payment, Total, big, by_customer, customers, fold, orders, payments


class Loose(msgspec.Struct):
    cents: int = 0


class Model(pydantic.BaseModel):
    cents: int = 0


def misspelled_field_in_a_map() -> None:
    Map(name="m", source=orders, each=lambda order: order.cent, serde=Json(int))


def other_type_than_the_serde_writes() -> None:
    Map(name="m", source=orders, each=lambda order: order.id, serde=Json(int))


def map_of_two_arguments() -> None:
    Map(name="m", source=orders, each=lambda order, at_ms: order.cents, serde=Json(int))


def misspelled_field_in_a_filter() -> None:
    Filter(name="f", source=orders, keep=lambda order: order.censt > 1)


def filter_by_another_name() -> None:
    Filter(name="f", source=orders, when=lambda order: order.cents > 1)


def misspelled_field_in_a_branch() -> None:
    Branch(name="b", source=orders, into={"dear": lambda order: order.price > 1})


def misspelled_field_in_a_rekey() -> None:
    Rekey(name="r", source=orders, by=lambda order: order.costumer)


def misspelled_field_in_a_window_key() -> None:
    Windowed(
        name="w",
        source=by_customer,
        by=lambda order: order.costumer,
        window=Tumbling("1h"),
        fold=lambda n, order: (n or 0) + 1,
        row=int,
    )


def first_fold_of_a_window_forgets_none() -> None:
    Windowed(
        name="w",
        source=by_customer,
        by=lambda order: order.customer,
        window=Tumbling("1h"),
        fold=lambda n, order: n + order.cents,
        row=int,
    )


def arguments_of_a_window_fold_swapped() -> None:
    Windowed(
        name="w",
        source=by_customer,
        by=lambda order: order.customer,
        window=Tumbling("1h"),
        fold=lambda order, n: (n or 0) + order.cents,
        row=int,
    )


def window_as_text() -> None:
    Windowed(
        name="w",
        source=by_customer,
        by=lambda order: order.customer,
        window="1h",
        fold=lambda n, order: (n or 0) + 1,
        row=int,
    )


def session_without_merge() -> None:
    Windowed(
        name="w",
        source=by_customer,
        by=lambda order: order.customer,
        window=Session("30m"),
        fold=lambda n, order: (n or 0) + 1,
        row=int,
    )


def results_sent_to_a_name() -> None:
    Windowed(
        name="w",
        source=by_customer,
        by=lambda order: order.customer,
        window=Tumbling("1h"),
        fold=lambda n, order: (n or 0) + 1,
        row=int,
        emit="hours",
    )


def mutable_row() -> None:
    Processor(name="p", on={orders: lambda rows, order, at_ms: None}, row=Loose)


def pydantic_row() -> None:
    Processor(name="p", on={orders: lambda rows, order, at_ms: None}, row=Model)


def dict_row() -> None:
    Processor(name="p", on={orders: lambda rows, order, at_ms: None}, row=dict[str, int])


def fold_of_two_arguments() -> None:
    def fold(rows: Rows[Total], order: Order) -> None: ...

    Processor(name="p", on={orders: fold}, row=Total)


def fold_of_another_source() -> None:
    Processor(name="p", on={payments: fold}, row=Total, emits=(big,))


def fold_called() -> None:
    def fold(rows: Rows[Total], order: Order, at_ms: int) -> None: ...

    Processor(name="p", on={orders: fold(None, None, 0)}, row=Total)


def rows_of_another_type() -> None:
    def fold(rows: Rows[Total], order: Order, at_ms: int) -> None:
        rows[order.customer] = order.cents

    Processor(name="p", on={orders: fold}, row=Total)


def row_that_may_be_none() -> None:
    def fold(rows: Rows[Total], order: Order, at_ms: int) -> None:
        rows[order.customer] = Total(rows.get(order.customer).count + 1)

    Processor(name="p", on={orders: fold}, row=Total)


def row_changed_in_place() -> None:
    def fold(rows: Rows[Total], order: Order, at_ms: int) -> None:
        total = rows.get(order.customer) or Total()
        total.count += 1

    Processor(name="p", on={orders: fold}, row=Total)


def key_that_is_no_text() -> None:
    def fold(rows: Rows[Total], order: Order, at_ms: int) -> None:
        rows[order.cents] = Total()

    Processor(name="p", on={orders: fold}, row=Total)


def fold_that_returns_an_emit() -> None:
    def fold(rows: Rows[Total], order: Order, at_ms: int) -> Emit:
        return big.emit(order.customer, Total())

    Processor(name="p", on={orders: fold}, row=Total, emits=(big,))


def fold_that_returns_a_row() -> None:
    def fold(rows: Rows[Total], order: Order, at_ms: int) -> Total:
        return Total()

    Processor(name="p", on={orders: fold}, row=Total)


def async_fold() -> None:
    async def fold(rows: Rows[Total], order: Order, at_ms: int) -> None: ...

    Processor(name="p", on={orders: fold}, row=Total)


def emitted_value_of_another_type() -> None:
    big.emit("ada", 7)


def how_misspelled() -> None:
    JoinWithin(
        name="j",
        left=orders,
        right=payments,
        before="0s",
        after="1h",
        how="outter",
        join=lambda order, payment: 1,
        to=Stream("j", Json(int)),
    )


def left_join_forgets_none() -> None:
    JoinWithin(
        name="j",
        left=orders,
        right=payments,
        before="0s",
        after="1h",
        how="left",
        join=lambda order, payment: payment.cents,
        to=Stream("j", Json(int)),
    )


def arguments_of_a_join_swapped() -> None:
    JoinWithin(
        name="j",
        left=orders,
        right=payments,
        before="0s",
        after="1h",
        how="inner",
        join=lambda payment, order: payment.order,
        to=Stream("j", Json(str)),
    )


def table_join_forgets_none() -> None:
    JoinStreamTable(
        name="j",
        stream=orders,
        table=customers,
        how="left",
        join=lambda order, name: name.upper(),
        to=Stream("j", Json(str)),
    )


def joined_value_of_another_type() -> None:
    JoinStreamTable(
        name="j",
        stream=orders,
        table=customers,
        how="inner",
        join=lambda order, name: order.cents,
        to=Stream("j", Json(str)),
    )


def table_join_of_a_misspelled_field() -> None:
    JoinTables(
        name="j",
        left=orders,
        right=payments,
        how="inner",
        join=lambda order, payment: order.total,
        to=Stream("j", Json(int)),
    )


def count_by_a_misspelled_field() -> None:
    count(name="c", source=orders, key=lambda order: order.costumer)


def count_by_a_number() -> None:
    count(name="c", source=orders, key=lambda order: order.cents)


def total_of_text() -> None:
    total(name="t", source=orders, key=lambda order: order.customer, value=lambda order: order.id)


def latest_without_a_row() -> None:
    latest(name="l", source=orders, key=lambda order: order.id, value=lambda order: order.cents)


def reduced_to_another_type() -> None:
    reduce(
        name="r",
        source=orders,
        key=lambda order: order.id,
        value=lambda order: order.cents,
        by=lambda one, other: str(one),
        row=int,
    )


def merged_sources_of_other_types() -> None:
    Merge(name="m", sources=[orders, payments], to=Stream("m", Json(Order)))


def source_of_a_type_without_a_form() -> None:
    Source("numbers", Json(list[complex]))


def global_fold_of_another_type() -> None:
    def fold(rows: Rows[str], name: int, at_ms: int) -> None: ...

    Global("names", customers, fold=fold, row=str)


def time_of_another_type() -> None:
    Source("orders", Json(Order), time=lambda order: order.id)


def piped_value_of_another_type() -> None:
    with Topology([Map(name="m", source=orders, each=lambda order: order.cents, serde=Json(int))]) as shop:
        shop.pipe("orders", Payment("o", 1))


def step_declared_twice() -> None:
    one = Map(name="m", source=orders, each=lambda order: order.cents, to=Internal("x", Json(int)))
    Topology([one, one])


def key_serde_of_another_type() -> None:
    Stream("big", Json(Total), key=Text()).emit(7, Total())


def final_results_of_another_type() -> None:
    Windowed(
        name="w",
        source=by_customer,
        by=lambda order: order.customer,
        window=Tumbling("1h"),
        fold=lambda n, order: (n or 0) + 1,
        row=int,
        emit=final(Stream("hours", Json(WindowResult[str]))),
    )
