"""The record that the event loop is folding at this moment, read from the frames of its thread: so folds cost
no more than without it.
"""

from __future__ import annotations

import dis
import inspect
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from types import CodeType, FrameType
from typing import Any

from holdfast.agents.partitions.batches.runner import Runner
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.fold.ordering import TimesReader
from holdfast.core.engine.fold.stepping import SteppingFolder
from holdfast.core.streams.windowing.fold import WindowFold

_FAST_ONE, _FAST_SEVERAL = Folder._fold_one.__code__, Folder._fold_alike.__code__
_FAST_COLUMNS, _RUN_OF_WINDOWS = Folder._fold_columns.__code__, WindowFold._run.__code__
_TIMES_OF_ALL, _TIME_OF_ONE = TimesReader.read_all.__code__, TimesReader.read.__code__
_RECORD = SteppingFolder._careful_record.__code__
_RUN = Runner._fold.__code__
LIMIT_FRAMES = 40
"""So many of the innermost calls of a stack are logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldNow:
    """A record that is being folded: of which *processor*, and where it lies. *offset* is a range where just
    the first and last that it may be are known, and None where these are not.
    """

    processor: str
    topic: str
    partition: int
    offset: int | range | None

    def __str__(self) -> str:
        return f"{self.processor}: {self.topic} partition {self.partition}, {_shown(self.offset)}"


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
    return f"{topic or 'an unknown record'}, {_shown(offset)}"


def _shown(offset: int | range | None) -> str:
    """Return an offset in words.

    >>> _shown(7), _shown(range(7, 10)), _shown(None)
    ('offset 7', 'one of the offsets 7 to 9', 'an unknown offset')
    """
    match offset:
        case None:
            return "an unknown offset"
        case range():
            return f"one of the offsets {offset.start} to {offset.stop - 1}"
        case _:
            return f"offset {offset}"


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


def _record(calls: list[FrameType]) -> tuple[str, int | range | None]:
    """Return topic and offset of the record of the innermost *calls* of a fold; no topic where it is not
    known.
    """
    inner: FrameType | None = None
    number: int | None = None
    for depth, call in enumerate(calls):
        if call.f_code is _RUN_OF_WINDOWS:
            number = call.f_locals.get("at")
        if call.f_code is _FAST_COLUMNS:
            return _topic_of(call), _of_all(call, number, calls[:depth])
        if call.f_code is _TIMES_OF_ALL:
            return call.f_locals["self"].topic, _of_all(call, None, calls[: depth + 1])
        if call.f_code is _TIME_OF_ONE:
            return call.f_locals["self"].topic, int(call.f_locals["batch"].offsets[call.f_locals["at"]])
        if call.f_code is _RECORD and "at" in call.f_locals:
            topic, offset = call.f_locals["at"]
            return topic, offset
        if call.f_code is _FAST_ONE:
            if "batch" in call.f_locals and "times" not in call.f_locals:  # a step takes all at once
                return _topic_of(call), _of_all(call, number, calls[:depth])
            return _topic_of(call), _of_one(call)
        if call.f_code is _FAST_SEVERAL:
            return _of_several(call, inner)
        inner = call
    return "", None


def _of_all(call: FrameType, number: int | None, inner: list[FrameType]) -> int | range:
    """Return the offset of the record that a *call* with a whole batch is at: by its *number*, or by the
    event that one of the *inner* calls holds; otherwise the range of the batch.
    """
    batches = (each.f_locals["batch"] for each in (*inner, call) if "batch" in each.f_locals)
    offsets = next(batches).offsets  # the innermost is without marks
    if number is None:
        number = _event_at_hand(inner)
    if number is None:
        return range(int(offsets[0]), int(offsets[-1]) + 1)
    return int(offsets[min(number, len(offsets) - 1)])


def _event_at_hand(calls: list[FrameType]) -> int | None:
    """Return the number of the last of a call's `events` that its inner call holds; None if unclear."""
    for outer, inner in zip(calls[1:], calls, strict=False):
        if isinstance(events := outer.f_locals.get("events"), Sequence):
            held = {id(each) for each in inner.f_locals.values()}
            if not (found := [at for at, event in enumerate(events) if id(event) in held]):
                return None
            # Other locals hold what came of an earlier event, such as its key.
            return found[-1] if sum(each is events[found[-1]] for each in events) == 1 else None
    return None


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
