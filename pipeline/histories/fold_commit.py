"""The metadata of a fold's commit: the fold's identity, up to where each partition was folded, and the
results.

The table of states is its own checkpoint: a fold continues from the positions of the last commit, and no
second record can be lost.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.positions import Position, encode_position, stored_format
from holdfast.core.engine.state.evolution import RowTypes, decode_row_types, encode_row_types, evolved
from holdfast.errors import ConfigError, LakeError
from holdfast.pipeline.bronze.commits import TableCommit, is_data_kept
from holdfast.pipeline.bronze.sealed import check_seal, sealed
from holdfast.pipeline.histories.fold_code import code_of


class FoldIdentity(msgspec.Struct, frozen=True):
    """The identity of the fold that a table is of: of *app*, its *processor* and *version*; *code* is a
    digest of the source of its functions, and of the code they use.
    """

    app: str
    processor: str
    version: int
    topics: tuple[str, ...]
    code: str

    def why_other(self, now: FoldIdentity) -> str | None:
        """Return in words the difference from *now*, None without one."""
        for name in ("app", "processor", "version", "topics"):
            was, is_ = getattr(self, name), getattr(now, name)
            if was != is_:
                return f"{name} {_told(was)}, and this is {name} {_told(is_)}"
        return (
            None
            if self.code == now.code
            else "another fold: its functions, or settings that its rows depend on, have been changed since"
        )


def _told(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def identity_of(processor: Processor[Any, Any], settings: Settings) -> FoldIdentity:
    """Return the identity of the fold of *processor*."""
    return FoldIdentity(
        app=settings.app,
        processor=processor.name,
        version=processor.version,
        topics=tuple(map(str, processor.topics)),
        code=code_of(processor),
    )


class PartitionCommit(msgspec.Struct, frozen=True, kw_only=True):
    """The position up to which a partition was folded, and its state. *position* is the marker as stored, in
    base64; *records* and *refused* count from the beginning, *digest* is that of a replay up to there. With
    several sources, choices are read on from the offset *choices_from*.
    """

    position: str
    choices_from: int = 0
    records: int = 0
    refused: int = 0
    rows: int = 0
    timers: int = 0
    digest: str = ""


class FoldCommit(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of one fold on both of its tables, in the words of each: the commit of the output comes
    first, that of the state with the same *batch* after it. *start* is the batch that it continued from, ""
    for none.

    *skips* are offsets of each source that were left out, *holes* the missing parts that were
    allowed. *row_types* are those of all rows so far. A table that is joined of other tables has no
    *partitions* of its own: *joined* are those of the other tables, by name.
    """

    batch: str
    start: str
    identity: FoldIdentity
    partitions: dict[int, PartitionCommit]
    topic_ids: dict[str, str]
    skips: dict[str, dict[int, list[tuple[int, int]]]] = {}
    holes: tuple[str, ...] = ()
    row_types: bytes = b""
    joined: dict[str, dict[int, PartitionCommit]] = {}
    holdfast_fold: int = 1

    def encode(self) -> str:
        return sealed(msgspec.json.encode(self).decode())

    def positions(self, processor: Processor[Any, Any]) -> dict[int, Position]:
        decode = stored_format(processor).decode
        return {at: decode(b64decode(each.position)) for at, each in self.partitions.items()}


_decode = msgspec.json.Decoder(FoldCommit).decode


def told_position(processor: Processor[Any, Any], position: Position) -> str:
    return b64encode(encode_position(position)).decode()


def noted_types(processor: Processor[Any, Any], before: FoldCommit | None) -> bytes:
    """Return the note of the types of all rows so far; ConfigError where the declared type does not read
    those before.
    """
    noted: RowTypes | None = None if before is None else decode_row_types(before.row_types)
    return encode_row_types(evolved(noted, processor))


def fold_in(commit: TableCommit) -> FoldCommit | None:
    """Return the metadata of a fold's commit, None for a commit of another origin."""
    if not commit.metadata or '"holdfast_fold":' not in commit.metadata:
        return None
    try:
        check_seal(commit.metadata)
        found = _decode(commit.metadata)
    except (msgspec.DecodeError, LakeError) as error:
        raise LakeError(
            f"version {commit.version}: what the fold noted is malformed ({error}): --rebuild folds anew"
        ) from error
    if found.holdfast_fold != 1:
        raise LakeError(
            f"version {commit.version} was written by a newer holdfast (format {found.holdfast_fold}):"
            " upgrade"
        )
    return found


def last_fold(where: str, history: Iterable[TableCommit]) -> FoldCommit | None:
    """Return the metadata of the newest fold of a table, None before any; *history* comes newest first.

    LakeError where another program has changed rows since.
    """
    for commit in history:
        if (found := fold_in(commit)) is not None:
            return found
        if not is_data_kept(commit):
            raise LakeError(
                f"{where}: version {commit.version} ({commit.operation}) was not written by a fold, and may"
                " have changed rows: --rebuild folds anew, or restore the table and fold into tables of your"
                " own (--into)"
            )
    return None


def check_identity(where: str, before: FoldCommit, now: FoldIdentity, ids: Mapping[str, str]) -> None:
    """Refuse to continue with the tables of another fold, or of topics that were made again."""
    if (why := before.identity.why_other(now)) is not None:
        raise ConfigError(
            f"{where} is of {why}. Fold into tables of its own (--into FOLDER), or anew (--rebuild); a fold"
            " that changes needs another version"
        )
    for topic, noted in before.topic_ids.items():
        if ids.get(topic, noted) != noted:
            raise LakeError(
                f"{where}: topic {topic} was deleted and made again (its id was {noted}, is {ids[topic]}):"
                " fold anew (--rebuild)"
            )
