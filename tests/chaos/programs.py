"""The example programs as one application, and its worker: `python -P -m tests.chaos.programs worker`."""

from __future__ import annotations

import runpy
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import holdfast
from holdfast.agents.app import create_app
from holdfast.core.engine.declared.processor import Processor
from tests.support.places import example_file

PROGRAMS = (
    "balances",
    "bestsellers",
    "currency_rates",
    "enrich",
    "interval_join",
    "page_views",
    "payments_once",
    "priced_orders",
    "shelves",
    "visits",
    "word_count",
)


def program(name: str) -> SimpleNamespace:
    """Return the names that an example program defines; its `app` is the list of its processors."""

    def only_list(processors: Sequence[Processor[Any, Any]]) -> list[Processor[Any, Any]]:
        return [*processors]

    with mock.patch.object(holdfast, "create_app", only_list, create=True):
        return SimpleNamespace(**runpy.run_path(str(example_file(f"{name}.py"))))


def all_processors() -> list[Processor[Any, Any]]:
    return [each for name in PROGRAMS for each in program(name).app]


if __name__ == "__main__":
    create_app(all_processors()).main()
