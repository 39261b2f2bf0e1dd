"""What `create_app` is given, and what is put beside it, works or is refused in one line before anything is lost."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.agents.app import create_app
from holdfast.core.processor import Processor
from holdfast.errors import ConfigError


def declare(**changed: Any) -> Processor[Any, Any]:
    declared: dict[str, Any] = {"name": "totals", "source": "orders", "decode": bytes, "fold": lambda *_: None, "row": int}
    return Processor(**declared | changed)


@pytest.mark.parametrize(
    ("processors", "why"),
    [
        (declare(), r"processors is the processor totals alone; write a list: \[totals\]"),
        (None, "processors is None; write a list of Processor"),
        ("totals", "processors is 'totals'; write a list"),
        ([declare(), int], "which is no Processor"),
        ([declare(), declare(source="other")], "two processors share a name, totals of orders and of other"),
        ([declare()] * 2, "two processors share a name"),
    ],
)
def test_an_application_is_a_list_of_processors_of_different_names(processors: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        create_app(processors)
    assert "\n" not in str(refused.value)
