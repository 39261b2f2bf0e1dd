"""The record that the event loop is folding at this moment, read from the frames of its thread: so folds cost
no more than without it.
"""

from __future__ import annotations

import dis
import inspect
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import length_hint
from types import CodeType, FrameType
from typing import Any

from holdfast.agents.partitions.batches.runner import Runner
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.fold.stepping import SteppingFolder
from holdfast.core.streams.windowing.fold import WindowFold

_FAST_ONE, _FAST_SEVERAL = Folder._fold_one.__code__, Folder._fold_alike.__code__
_FAST_COLUMNS, _RUN_OF_WINDOWS = Folder._fold_columns.__code__, WindowFold._run.__code__
_RECORD = SteppingFolder._careful_record.__code__
_RUN = Runner._fold.__code__
LIMIT_FRAMES = 40
"""So many of the innermost calls of a stack are logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldNow:
    """A record that is being folded: of which *processor*, and where it lies; *offset* None where that is not
    known.
    """

    processor: str
    topic: str
    partition: int
    offset: int | None

    def __str__(self) -> str:
        at = "an unknown offset" if self.offset is None else f"offset {self.offset}"
        return f"{self.processor}: {self.topic} partition {self.partition}, {at}"


def fold_now(frame: FrameType | None) -> FoldNow | None:
    """Return the fold under way in the call *frame*, the innermost of a thread; None without one."""
    calls = [*_calls(frame)]
    for at, call in enumerate(calls):
        if call.f_code is _RUN:
            part = call.f_locals["self"].part
            topic, offset = _record(calls[:at])
            return FoldNow(
                processor=part.processor.name,
                topic=topic or part.processor.topics[0],
                partition=part.partition,
                offset=offset,
            )
    return None


def global_fold_now(frame: FrameType | None) -> str:
    """Return which record of a global's topic is folded in the call *frame*, as far as that is known."""
    topic, offset = _record([*_calls(frame)])
    return f"{topic or 'an unknown record'}, {'an unknown offset' if offset is None else f'offset {offset}'}"


def stack_of(frame: FrameType | None) -> str:
    """Return the innermost calls of a thread as a traceback shows them."""
    calls = [*_calls(frame)][:LIMIT_FRAMES]
    stack = traceback.StackSummary.extract((call, call.f_lineno) for call in reversed(calls))
    return "".join(stack.format()).rstrip()


def _calls(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield calls from the innermost outwards."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _record(calls: list[FrameType]) -> tuple[str, int | None]:
    """Return topic and offset of the record of the innermost *calls* of a fold; no topic where it is not
    known.
    """
    inner: FrameType | None = None
    number: int | None = None
    for call in calls:
        if call.f_code is _RUN_OF_WINDOWS:
            number = call.f_locals.get("at")
        if call.f_code is _FAST_COLUMNS:
            offsets = call.f_locals["batch"].offsets
            return _topic_of(call), None if number is None else int(offsets[min(number, len(offsets) - 1)])
        if call.f_code is _RECORD and "at" in call.f_locals:
            topic, offset = call.f_locals["at"]
            return topic, offset
        if call.f_code is _FAST_ONE:
            return _topic_of(call), _of_one(call)
        if call.f_code is _FAST_SEVERAL:
            return _of_several(call, inner)
        inner = call
    return "", None


def _topic_of(call: FrameType) -> str:
    return str(call.f_locals["of"].source.topic) if "of" in call.f_locals else ""


def _of_one(call: FrameType) -> int | None:
    """Return the offset of the record that `Folder._fold_one` is at: the rest of an iterator of times shows
    how many were taken, the last of which is folded unless the next is still being decoded.
    """
    found = call.f_locals
    if "times" not in found or "batch" not in found:
        return None
    offsets = found["batch"].offsets
    taken = len(offsets) - length_hint(found["times"])
    at = taken if _is_decoding(call) else taken - 1
    return int(offsets[min(max(at, 0), len(offsets) - 1)])


def _is_decoding(call: FrameType) -> bool:
    """Return whether a loop over events asks for the next of them at this moment."""
    return any(
        each.offset == call.f_lasti and each.opname == "FOR_ITER"
        for each in dis.get_instructions(call.f_code)
    )


def _of_several(call: FrameType, inner: FrameType | None) -> tuple[str, int | None]:
    """Return topic and offset of the record that `Folder._fold_alike` is at."""
    found = call.f_locals
    if "left" not in found or "batch" not in found:
        return "", None
    folder, batch = found["self"], found["batch"]
    taken = batch.records - length_hint(found["left"])
    folds = {_code(each) for each in folder._calls}
    at = taken - 1 if inner is not None and inner.f_code in folds else taken
    at = min(max(at, 0), batch.records - 1)
    source = batch.order[at]
    portion = batch.portions[source]
    number = sum(1 for each in batch.order[:at] if each == source)
    return str(folder._folds[source].source.topic), int(portion.batch.offsets[number])


def _code(function: Callable[..., Any]) -> CodeType | None:
    """Return the code that runs first when *function* is called; None for one that is not Python's."""
    plain = inspect.unwrap(function)
    for each in (plain, getattr(plain, "func", None), getattr(type(plain), "__call__", None)):  # noqa: B004
        if isinstance(found := getattr(each, "__code__", None), CodeType):
            return found
    return None
