"""docs/PROTOCOL.md, "Election" and "Outbox progress", against the code: constants, transitions, headers
and progress records.
"""

from __future__ import annotations

import pytest

from holdfast.core.outbox import election, harvest
from holdfast.core.outbox.election import LEGAL, LeaderRecord, Phase
from holdfast.core.outbox.harvest import (
    ProducerProgress,
    RowsProgress,
    SequencesProgress,
    decode_progress,
    rows_key,
    sequences_key,
    unpack_ids,
)
from tests.core.claims.test_protocol_page import Row, table


def bare(cell: str) -> str:
    return cell.strip("`")


CONSTANTS = table("Constant", "Value", "Meaning")
PROGRESS = table("Key", "Value")


@pytest.mark.parametrize("row", CONSTANTS, ids=lambda row: bare(row["Constant"]))
def test_a_constant_has_the_value_of_the_page(row: Row) -> None:
    assert str(getattr(election, bare(row["Constant"]))) == row["Value"]


def test_the_transitions_of_the_page_are_those_of_the_code() -> None:
    told = {(Phase(row["From"]), Phase(row["To"])): row["When"] for row in table("From", "To", "When")}
    assert told == dict(LEGAL)


def test_a_beat_has_the_fields_of_the_page() -> None:
    fields = ["unix_ns", "name", "nonce", "term", "number", "epoch"]
    beat = LeaderRecord(unix_ns=1, name="a", nonce="b", term=2, number=3, epoch=4)
    assert beat.encode() == "%".join(str(getattr(beat, field)) for field in fields).encode()


def test_the_headers_are_those_of_the_page() -> None:
    told = [bare(row["Header"]) for row in table("Header", "Holds")]
    assert told == [harvest.PRODUCER_HEADER, harvest.EPOCH_HEADER, harvest.SEQUENCE_HEADER]


def test_the_progress_records_of_the_page_are_written_and_read() -> None:
    (rows_name, rows_text), (sequences_name, sequences_text) = [
        (bare(row["Key"]).encode(), bare(row["Value"]).encode()) for row in PROGRESS
    ]
    rows, sequences = decode_progress(rows_name, rows_text), decode_progress(sequences_name, sequences_text)
    assert isinstance(rows, RowsProgress)
    assert isinstance(sequences, SequencesProgress)
    books = ProducerProgress("orders-0")
    books.epoch = 3
    ahead = {("paid", 0): 41, ("paid", 2): 7}
    assert books.records(unpack_ids(rows.rows), ahead) == [
        (rows_name, rows_text),
        (sequences_name, sequences_text),
    ]
    assert (rows_key("orders-0"), sequences_key("orders-0", "paid")) == (rows_name, sequences_name)
