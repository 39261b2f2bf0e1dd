"""The limit of open files, in processes that were started under a small one."""

from __future__ import annotations

import subprocess
import sys

from tests.support.patience import DEADLINE_S

PROGRAM = """
import resource
from holdfast.agents import descriptors
print(descriptors.raised_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def limits(ulimit: str) -> list[int]:
    done = subprocess.run(
        ["bash", "-c", f'ulimit {ulimit} && exec "{sys.executable}" -P -c "$0"', PROGRAM],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    return [int(word) for word in done.stdout.split()]


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    assert limits("-Sn 256 && ulimit -Hn 900") == [900, 900]


def test_a_hard_limit_is_taken_as_it_is() -> None:
    assert limits("-n 256") == [256, 256]
