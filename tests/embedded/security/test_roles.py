"""All roles do their jobs with exactly their grants on the embedded Kafka; `make test` shows some of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import test_grants
from tests.support.secured import Guarded


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with Guarded.on_embedded() as broker:
        yield broker


@pytest.mark.slow
@pytest.mark.parametrize("role", test_grants.JOBS)
def test_a_role_does_its_job_with_exactly_its_grants(role: str, guarded: Guarded, tmp_path: Path) -> None:
    test_grants.test_a_role_does_its_job_with_exactly_its_grants(role, guarded, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("role", test_grants.JOBS)
def test_a_role_fails_without_any_one_of_its_grants(role: str, guarded: Guarded, tmp_path: Path) -> None:
    test_grants.test_a_role_fails_without_any_one_of_its_grants(role, guarded, tmp_path)
