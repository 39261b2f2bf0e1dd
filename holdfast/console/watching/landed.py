"""The faults of the lake, from the content found there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from urllib.parse import urlencode

from holdfast.console.asking.lake import LakeTopicLine
from holdfast.console.watching.findings import HealthFinding, Urgency


def judge_landed(found: Sequence[LakeTopicLine]) -> Iterator[HealthFinding]:
    """Yield a finding for each topic whose table has faults, or cannot be read. The lag of landing says
    nothing: it comes in batches.
    """
    for each in found:
        page = "/lake/view?" + urlencode({"topic": each.topic})
        if each.trouble is not None:
            yield HealthFinding(
                urgency=Urgency.WARNING,
                what=f"Topic {each.topic} cannot be read in the lake: {each.trouble}",
                cure=(
                    "Land it with `holdfast pipeline land`, or name the lake in console_lake as landing does."
                ),
                page=page,
            )
        elif each.faults_count:
            count = f"{each.faults_count} fault" + ("" if each.faults_count == 1 else "s")
            yield HealthFinding(
                urgency=Urgency.CRITICAL,
                what=f"Topic {each.topic} has {count} in the lake",
                cure="`holdfast pipeline check` names each, and what mends it.",
                page=page,
            )
