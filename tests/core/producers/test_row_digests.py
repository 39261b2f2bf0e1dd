"""The digest of a published row: whatever of the record changes, and wherever it is moved, it shows."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.engine.declared.partitioners import of_key
from holdfast.core.engine.declared.processor import Headers
from holdfast.core.producers.audit import Rules, decode
from holdfast.core.producers.row_digests import Digested, RowDigests, examine
from holdfast.core.producers.stamps import DIGEST, PRODUCER, Stamp, stamp_headers

CONTENT = st.one_of(st.none(), st.binary(max_size=6))
NAMED = st.lists(st.tuples(st.sampled_from(["a", "b", "é", "trace"]), CONTENT), max_size=3)
STAMP = Stamp("shop-0", 7, 41)


def published(
    key: bytes | None,
    value: bytes | None,
    headers: Headers,
    *,
    partition: int,
    among: int,
    stamp: Stamp = STAMP,
) -> Headers:
    """Return the headers as the harvester sends them."""
    digests = RowDigests(stamp.producer.encode(), b"%d" % stamp.epoch)
    digest = digests.header(b"%d" % stamp.sequence, partition, among, key, value, headers)
    return (*headers, (DIGEST, digest), *stamp_headers(stamp))


@given(CONTENT, CONTENT, NAMED)
def test_a_record_as_it_was_published_fits(
    key: bytes | None, value: bytes | None, headers: list[Any]
) -> None:
    among = 12 if key is not None else 0
    partition = 3 if key is None else of_key(key, among)
    sent = published(key, value, tuple(headers), partition=partition, among=among)
    found = examine(STAMP, partition, key, value, sent)
    assert (found.known, found.changed, found.misplaced) == (True, "", "")


@given(CONTENT, CONTENT, NAMED, CONTENT, CONTENT, NAMED)
def test_another_key_value_or_header_does_not_fit(
    key: bytes | None,
    value: bytes | None,
    headers: list[Any],
    key2: bytes | None,
    value2: bytes | None,
    headers2: list[Any],
) -> None:
    """None is not the empty value, and bytes that move from one field to the next are a change."""
    sent = published(key, value, tuple(headers), partition=3, among=0)
    altered = examine(STAMP, 3, key2, value2, (*headers2, *sent[len(headers) :]))
    assert bool(altered.changed) is ((key, value, headers) != (key2, value2, headers2))


@pytest.mark.parametrize("stamp", [Stamp("shop-0", 7, 42), Stamp("shop-0", 8, 41), Stamp("shop-1", 7, 41)])
def test_a_digest_belongs_to_one_number_of_one_producer(stamp: Stamp) -> None:
    sent = published(b"k", b"v", (), partition=3, among=0)
    assert examine(stamp, 3, b"k", b"v", (sent[0], *stamp_headers(stamp))).changed


def test_a_record_in_another_partition_is_misplaced_and_not_changed() -> None:
    own = of_key(b"k", 12)
    found = examine(STAMP, own + 1, b"k", b"v", published(b"k", b"v", (), partition=own, among=12))
    assert (found.changed, found.misplaced) == ("", f"it was published to partition {own}")
    found = examine(STAMP, own + 1, b"k", b"v", published(b"k", b"v", (), partition=own + 1, among=12))
    assert found.misplaced == f"its key's partition among 12 is {own}", "the harvester itself was wrong"
    assert not examine(STAMP, 1, b"k", b"v", published(b"k", b"v", (), partition=1, among=0)).misplaced, (
        "the row named its partition"
    )


def test_a_topic_that_grew_is_judged_by_the_partitions_it_had() -> None:
    for among in (4, 8, 12):
        own = of_key(b"k", among)
        assert not examine(
            STAMP, own, b"k", b"v", published(b"k", b"v", (), partition=own, among=among)
        ).misplaced


@pytest.mark.parametrize(
    "told", [None, b"", b"zz", b"6b9ae39dfc5b1b44", b"6b9ae39dfc5b1b44/1/0", b"6b9ae39dfc5b1b44/99999999999"]
)
def test_a_digest_that_cannot_be_read_is_a_change(told: bytes | None) -> None:
    found = examine(STAMP, 1, b"k", b"v", ((DIGEST, told), *stamp_headers(STAMP)))
    assert (found.known, bool(found.changed)) == ((told is not None), told is not None)


def test_the_last_of_two_digests_counts_as_of_two_stamps() -> None:
    sent = published(b"k", b"v", ((DIGEST, b"mine"), (PRODUCER, b"me")), partition=1, among=0)
    assert not examine(STAMP, 1, b"k", b"v", sent).changed


def test_a_record_with_a_number_of_its_key_is_held_against_its_own_value() -> None:
    rules = Rules(outbox="shop", number="n")
    stamp = Stamp("shop-0", 2, 550)
    headers = published(b"k", b"paid", (("n", b"7"),), partition=of_key(b"k", 4), among=4, stamp=stamp)
    seen = decode(b"k", headers, 567, b"paid", of_key(b"k", 4), rules=rules)
    assert (seen.number, seen.digested) == (7, Digested(known=True))
    assert decode(b"k", headers, 567, b"owed", of_key(b"k", 4), rules=rules).digested.changed
