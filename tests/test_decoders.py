"""Decoders of msgspec are made when a module is imported.

Where two threads have msgspec read the annotations of one class at once, the process ends with a segmentation
fault (Python 3.11, msgspec 0.22): `decode(..., type=T)` does that at its first call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.places import ROOT

ROOMS = ("holdfast", "agents", "tables", "outbox", "pipeline")


def late(source: str) -> Iterator[int]:
    """Yield the lines where a call makes a decoder of a type for itself alone."""
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "decode"
            and ast.unparse(node.func.value) in ("msgspec.json", "msgspec.msgpack")
            and any(each.arg == "type" for each in node.keywords)
        ):
            yield node.lineno


def sources() -> list[Path]:
    return sorted(
        path for room in ROOMS for path in (ROOT / room).rglob("*.py") if "template" not in path.parts
    )


@pytest.mark.parametrize("room", ROOMS)
def test_no_call_makes_a_decoder_of_its_own(room: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sources()
        if path.relative_to(ROOT).parts[0] == room
        for line in late(path.read_text())
    ]
    assert found == [], "make a decoder beside the class, as others do"


def test_a_decoder_that_a_call_makes_is_found() -> None:
    assert [*late("import msgspec\ndef f(b): return msgspec.json.decode(b, type=A)")] == [2]
    assert [*late("import msgspec\nread = msgspec.json.Decoder(A).decode\nread(b'')")] == []
