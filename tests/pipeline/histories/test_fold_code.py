"""A fold's code changes with its functions and the parts of the application that they use; comments, layout
and installed packages do not matter.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.engine.declared.processor import Processor
from holdfast.pipeline.histories.fold_code import code_of
from tests.support.patience import DEADLINE_S

HELPERS = """
RATE = 3

def tax(amount):
    return amount * RATE

class Rules:
    def apply(self, amount):
        return tax(amount)
"""
SHOP = """
import json
from functools import partial

import shop_helpers
from shop_helpers import Rules

LIMIT = 10
UNUSED = 1

def decode(value):
    return json.loads(value)

def capped(amount, most):
    return min(amount, most)

cap = partial(capped, most=LIMIT)

def making(bonus):
    def fold(rows, event, at_ms):
        rows["n"] = Rules().apply(cap(event)) + bonus + shop_helpers.tax(0)
    return fold

fold = making(5)
"""


def made(folder: Path, shop: str = SHOP, helpers: str = HELPERS) -> str:
    """Return the digest of the fold of an application that is written so."""
    for name, text in (("shop_helpers", helpers), ("shop_of_code", shop)):
        path = folder / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        import linecache

        linecache.checkcache(str(path))
        spec.loader.exec_module(module)
    processor: Processor[Any, Any] = Processor(
        name="totals", source="t", decode=module.decode, fold=module.fold, row=int
    )
    return code_of(processor)


@pytest.fixture(autouse=True)
def forgotten(tmp_path: Path) -> Any:
    yield
    for name in ("shop_helpers", "shop_of_code"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("amount * RATE", "amount + RATE"),
        ("RATE = 3", "RATE = 4"),
        ("return tax(amount)", "return -tax(amount)"),
        ("min(amount, most)", "max(amount, most)"),
        ("LIMIT = 10", "LIMIT = 11"),
        ("making(5)", "making(6)"),
        ("json.loads(value)", "json.loads(value) + 1"),
    ],
)
def test_a_change_of_code_that_a_fold_uses_counts(tmp_path: Path, before: str, after: str) -> None:
    assert (before in SHOP) != (before in HELPERS)
    one, two = (tmp_path / name for name in ("one", "two"))
    one.mkdir()
    two.mkdir()
    changed = made(two, SHOP.replace(before, after), HELPERS.replace(before, after))
    assert made(one) != changed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("UNUSED = 1", "UNUSED = 2"),
        ("def tax(amount):", "# a comment\ndef tax(amount):"),
        ("RATE = 3", "RATE = 3  # per cent"),
        ("LIMIT = 10", "\n\nLIMIT = 10"),
    ],
)
def test_changes_of_unused_code_and_comments_do_not(tmp_path: Path, before: str, after: str) -> None:
    one, two = (tmp_path / name for name in ("one", "two"))
    one.mkdir()
    two.mkdir()
    assert made(one) == made(two, SHOP.replace(before, after), HELPERS.replace(before, after))


@pytest.mark.process
def test_it_is_the_same_in_another_process_with_another_hash_seed() -> None:
    program = (
        "from tests.choices.world import processor_of\n"
        "from tests.pipeline.accounts import accounts\n"
        "from holdfast.pipeline.histories.fold_code import code_of\n"
        "print(code_of(accounts()), code_of(processor_of(2)))"
    )
    root = Path(__file__).parents[3]
    told = {
        subprocess.run(
            [sys.executable, "-P", "-c", program],
            env={"PYTHONPATH": str(root), "PYTHONHASHSEED": seed},
            cwd=root,
            check=True,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(told) == 1


def test_a_fold_that_changes_is_another(tmp_path: Path) -> None:
    from tests.pipeline.accounts import accounts

    first = accounts()
    assert code_of(first) == code_of(replace(first, name="other"))
