"""A processor whose emits continue the trace of the order: `holdfast -A traced_bills worker`."""

from collections.abc import Iterator

from holdfast import Emit, Processor, Rows, by_key, create_app, traced


def bill(rows: Rows[int], order: str, at_ms: int) -> Iterator[Emit]:
    rows[order] = (rows.get(order) or 0) + 1
    yield Emit("bills", order, b"to pay")


bills = traced(
    Processor(
        name="bills",
        source="orders",
        decode=bytes.decode,
        fold=bill,
        row=int,
        route=by_key,
        emits=("bills",),
    )
)
app = create_app([bills])
