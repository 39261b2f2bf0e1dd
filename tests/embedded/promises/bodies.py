"""Tests of another module, to be run once more, with the fixtures of this folder."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any


def bodies_of(module: ModuleType, *left_out: str) -> Mapping[str, Any]:
    """Return the tests and fixtures of *module*, for the global names of another; without those
    *left_out*.
    """
    return {
        name: value
        for name, value in vars(module).items()
        if name not in left_out and (name.startswith("test_") or hasattr(value, "_fixture_function_marker"))
    }
