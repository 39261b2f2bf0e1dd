"""Whatever bytes come from outside, a decoder returns or raises one of its own errors, soon, with memory that
the bytes explain, and reads what it writes.

`make test` looks at a few; `make fuzz SEED=7 BUDGET=20000` at as many as you like for each decoder. The same
seed gives the same inputs.
"""

from __future__ import annotations

import os
import time
import tracemalloc

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.mutating import inputs
from tests.fuzz.records import ANSWERS, WHOLE_RECORDS
from tests.fuzz.schemas import SCHEMAS
from tests.fuzz.targets import LIMIT_UNPACKED_BYTES, TARGETS, Target
from tests.support.scale import scaled

BUDGET = scaled(int(os.environ.get("HOLDFAST_FUZZ_BUDGET", "60")))
SEED = int(os.environ.get("HOLDFAST_FUZZ_SEED", "1"))
LIMIT_BASE_BYTES = 2 << 20
"""The memory that a decoder may use whatever its input: tables made once, an error and its traceback."""
LIMIT_FACTOR = 300
"""The bytes of Python objects that a byte of input may become: an empty list takes 56 and a reference of 8
for one byte of MessagePack.
"""
LIMIT_CPU_S = 1.0


def judge(target: Target, data: bytes) -> None:
    """Decode *data* and raise AssertionError for what must not be."""
    found, good = None, False
    tracemalloc.start()  # for this alone: what makes the inputs would be slowed down tenfold
    began_s = time.thread_time()
    try:
        found, good = target.decode(data), True
    except target.errors:
        pass
    except Exception as error:
        raise AssertionError(f"{target.name}: {type(error).__name__}: {error} for {data[:200]!r}") from error
    finally:
        spent_s, used = time.thread_time() - began_s, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    allowed = (
        LIMIT_BASE_BYTES + LIMIT_FACTOR * len(data) + (40 * LIMIT_UNPACKED_BYTES if target.unpacks else 0)
    )
    assert used <= allowed, f"{target.name}: {used} bytes for {len(data)} of input, {data[:200]!r}"
    assert spent_s <= LIMIT_CPU_S, f"{target.name}: {spent_s:.2f} s for {data[:200]!r}"
    if good and target.encode is not None:
        try:
            written = target.encode(found)
        except target.errors:
            return  # what others wrote is read as leniently as they read it, and not written again
        assert target.decode(written) == found, f"{target.name}: {found!r} does not come back"


@pytest.mark.long
@pytest.mark.parametrize(
    "target", [*TARGETS, *WHOLE_RECORDS, *ANSWERS, *SCHEMAS], ids=lambda target: target.name
)
def test_a_decoder_takes_any_bytes(target: Target) -> None:
    for each in target.seeds:
        judge(target, each)

    @seed(SEED)
    @settings(
        max_examples=BUDGET,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(data=inputs(target.seeds))
    def run(data: bytes) -> None:
        judge(target, data)

    run()


def _forgets_its_errors(data: bytes) -> int:
    return data.index(b"/")


def _believes_lengths(data: bytes) -> bytes:
    """Take far more than is allowed, or nothing: a byte above the limit once may be below it again."""
    return bytes(min(int.from_bytes(data[:4], "big") & ~0x3FFFFF, 64 << 20))


def _never_ends(data: bytes) -> None:
    until_s = time.thread_time() + 1.1 * LIMIT_CPU_S
    while data and time.thread_time() < until_s:
        pass


@pytest.mark.long
@pytest.mark.parametrize(
    ("decode", "said"),
    [(_forgets_its_errors, "ValueError"), (_believes_lengths, "of input"), (_never_ends, " s for ")],
)
def test_a_decoder_that_is_wrong_is_found(decode: object, said: str) -> None:
    wrong = Target(name="wrong", decode=decode, seeds=(b"\x00\x00\x00\x01/",))  # type: ignore[arg-type]
    with pytest.raises(AssertionError, match=said):
        test_a_decoder_takes_any_bytes(wrong)
