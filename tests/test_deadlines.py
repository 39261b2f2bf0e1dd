"""Waits for what must come share one deadline, that of tests/support/patience.py."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.support.places import ROOT

TESTS = ROOT / "tests"
ONE = "support/patience.py"
ALLOWED = {
    (
        "agents/faust/suite/test_suite.py",
        "DEADLINE_S",
    ): "the whole suite of Faust, in a test with a longer guard",
    ("clients/claims/claiming.py", "PATIENT_S"): "a setting of consumers: the time between heartbeats",
    ("support/collecting.py", "DEADLINE_S"): "covers a whole collection, before any test has a guard",
    ("support/harness.py", "ASK_DEADLINE_S"): "one question of several: a worker may be frozen",
    ("support/harness.py", "LOOK_DEADLINE_S"): "a question of a test that has failed",
    ("support/shared_broker.py", "QUESTION_DEADLINE_S"): "who says nothing must not keep others waiting",
}
"""Constants that are no deadline of a wait for what must come, and why."""

CONSTANT = re.compile(r"^((?:\w+, )*\w*(?:DEADLINE_S|PATIEN)\w*(?:, \w+)*)(?:: \w+)? = (.+)$", re.MULTILINE)
NUMBER = re.compile(r"[\d_]+(?:\.\d+)?")
WAITS = ("flush", "result", "join", "init_transactions", "commit_transaction", "abort_transaction")
LITERAL = re.compile(rf"\.(?:{'|'.join(WAITS)})\((?:timeout=)?\d{{2,}}(?:\.\d+)?\)")
"""Calls whose one number is the deadline of a wait: of ten seconds and more."""


def numbers_in(source: str) -> Iterator[str]:
    """Give the names of the constants of a module that hold a deadline as a number."""
    for names, values in CONSTANT.findall(source):
        for name, value in zip(names.split(", "), values.split(", "), strict=False):
            if re.search("DEADLINE_S|PATIEN", name) and NUMBER.fullmatch(value):
                yield name


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted(TESTS.rglob("*.py")):
        yield path.relative_to(TESTS).as_posix(), path.read_text(encoding="utf-8")


def test_no_test_has_a_deadline_of_its_own() -> None:
    found = {(name, each) for name, source in sources() if name != ONE for each in numbers_in(source)}
    assert found == ALLOWED.keys(), (
        "import DEADLINE_S or SCENARIO_S of tests/support/patience.py, or say why not"
    )


def test_no_wait_has_a_number_instead_of_a_named_deadline() -> None:
    found = [f"{name}: {each}" for name, source in sources() for each in LITERAL.findall(source)]
    assert found == [], "write DEADLINE_S of tests/support/patience.py"


def test_a_deadline_is_found_however_it_is_written() -> None:
    source = (
        "DEADLINE_S = 60.0\n_READ_DEADLINE_S: float = 1_000\nLEAST_S, DEADLINE_S = 0.5, 60\n"
        "PATIENT = 20\nPATIENCE = {'a': 1}\nDEADLINE_S = OTHER_S\nPAUSE_S = 3\n"
    )
    assert [*numbers_in(source)] == ["DEADLINE_S", "_READ_DEADLINE_S", "DEADLINE_S", "PATIENT"]
    text = f"producer.{'flush'}(60)\nthread.join(5)\nfound.{'result'}(timeout=30.0)\nfound.result(DEADLINE_S)"
    assert len(LITERAL.findall(text)) == 2
