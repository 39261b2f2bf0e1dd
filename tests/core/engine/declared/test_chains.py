"""Chains of processors: what one version may emit to, and who is raised with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.clients.topics.checks import check_processors
from holdfast.config import Settings
from holdfast.core.engine.batches import Batch
from holdfast.core.engine.declared.chains import behind, listed, raised, require_chains
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.engine.declared.serdes import Text
from holdfast.core.engine.declared.sources import Source
from holdfast.core.engine.declared.streams import Internal
from holdfast.core.engine.emits import Emit, Emits
from holdfast.core.engine.fold.folding import Folder
from holdfast.core.engine.positions import Position, decode_position, encode_position, position_format
from holdfast.core.engine.state.codec import NOTHING_APPLIED
from holdfast.core.engine.state.memory_store import DictStore
from holdfast.core.engine.state.rows import Rows
from holdfast.errors import ChainError
from holdfast.streams import Merge, Rekey, count
from holdfast.testing import Topology


def pairs(line: str) -> list[tuple[str, str]]:
    return [(word, word) for word in line.split()]


def split(topic: str, version: int) -> Processor[Any, int]:
    def fold(rows: Rows[int], line: str, at_ms: int) -> Emits:
        return [Emit(str(topic), word, word.encode()) for word in line.split()]

    return Processor(
        name="split", source="lines", decode=bytes.decode, fold=fold, row=int, version=version, emits=(topic,)
    )


def counts(
    topic: str, version: int = 1, name: str = "counts", emits: str | None = None
) -> Processor[Any, int]:
    return count(name=name, source=topic, decode=bytes.decode, key=str, version=version, emits=emits)


def test_a_raised_writer_may_not_emit_to_the_topic_that_its_last_version_emitted_to() -> None:
    require_chains([split("words", 1), counts("words")])
    require_chains([split("words", 2)])
    require_chains([split("words.v2", 2), counts("words.v2")])
    for plain in ("words-2", "topic_2", "stage.2.words", "words.v2-more", "words.v22", "v2"):
        with pytest.raises(ChainError, match=f"topic {plain}: version 2 of split emits to it"):
            require_chains([split(plain, 2), counts(plain)])
    app = [split("words", 2), counts("words", emits="tops"), counts("tops", version=4, name="top")]
    with pytest.raises(
        ChainError, match=r"counts would take that in twice.*Internal\(\.\.\., version=2\)"
    ) as error:
        require_chains(app)
    assert str(error.value).endswith("raise counts to version 2, top to version 5")
    (finding,) = check_processors(Settings(app="shop"), app)
    assert (finding.topic, finding.chain) == ("words", True)


def test_a_writer_that_hands_over_emits_nothing_twice_and_raises_no_reader() -> None:
    silent = replace(split("words", 2), emits_from="handover")
    require_chains([silent, counts("words")])
    with pytest.raises(ChainError, match='twice: declare split with emits_from="handover"; or'):
        require_chains([split("words", 2), counts("words")])


def test_a_circle_through_plain_topics_goes_to_a_next_version_by_handover_alone() -> None:
    def circle(**second: Any) -> list[Processor[Any, int]]:
        return [
            split("words", 1),
            replace(split("words", 1), **{"name": "back", "source": "words", "emits": ("lines",), **second}),
        ]

    require_chains(circle())
    with pytest.raises(
        ChainError, match=r"topic lines: version 2 of back .*and split would take that in twice"
    ):
        require_chains(circle(version=2))
    require_chains(circle(version=2, emits_from="handover"))


def test_a_reader_of_the_internal_topic_of_another_version_gets_the_one_to_read() -> None:
    old, new = Internal("words", Text()), Internal("words", Text(), version=2)
    require_chains([split(new, 2), counts(new, version=2)])
    with pytest.raises(
        ChainError, match=r"words\.v1: split emits to words\.v2 now: .* raise counts to version 2"
    ):
        require_chains([split(new, 2), counts(old)])
    with pytest.raises(ChainError, match=r"counts names it as text"):
        require_chains([split(new, 2), counts("words.v2")])


def test_all_downstream_processors_are_raised_and_a_circle_ends() -> None:
    app = [split("words", 1), counts("words", emits="tops"), counts("tops", name="top", emits="words")]
    assert behind(app, ["split"]) == {"counts", "top"}
    assert listed(raised(app, ["top"])) == "counts to version 2, top to version 2"


def test_a_position_in_an_internal_topic_names_the_version_that_was_read() -> None:
    first, second = (Internal("words", Text(), version=version) for version in (1, 2))
    folder: Folder[int] = Folder(counts(first), DictStore())
    changes = folder.fold([Batch([0], [5], ([b"to"],))])
    assert changes is not None
    _, marker = changes.closing()
    assert position_format(counts(first)).decode(marker) == changes.marker
    with pytest.raises(
        ChainError, match=r"table counts\.v1 was .* another version of words\.v2.*raise counts to version 2"
    ):
        position_format(counts(second)).decode(marker)
    before = encode_position(Position((7,), 9, 1))
    with pytest.raises(ChainError):
        position_format(counts(first)).decode(before)


def test_positions_in_other_topics_are_written_as_they_were() -> None:
    assert encode_position(Position((7,), 9, 1)).hex() == "9407090101"
    assert decode_position(bytes.fromhex("9407090101")) == Position((7,), 9, 1)
    assert position_format(counts("words")).start == Position((NOTHING_APPLIED,), -1, 1)


def test_several_internal_sources_have_choices_of_their_versions() -> None:
    one, other = (Source(Internal(name, Text(), version=2), Text()) for name in ("a", "b"))
    merged = Merge(name="merged", sources=[one, other], version=2)
    assert merged.choices("shop") == "shop-merged-choices.v2.v2"
    later = Source(Internal("b", Text(), version=3), Text())
    again = Merge(name="merged", sources=[one, later], version=3)
    form = position_format(again)
    with pytest.raises(ChainError, match=r"another version of a\.v2, b\.v3"):
        form.decode(encode_position(position_format(merged).start))


@pytest.mark.parametrize("versions", [(1, 1), (2, 2), (2, 5)])
def test_each_version_of_a_chain_counts_each_word_once(versions: tuple[int, int]) -> None:
    words: Rekey[Any, Any] = Rekey(
        name="words", source=Source("lines", Text()), pairs=pairs, serde=Text(), version=versions[0]
    )
    counted = counts(words.to, versions[1])
    with Topology([words, counted]) as topology:
        topology.pipe("lines", "to be or not to be to")
        assert topology.table(counted)["to"] == 3
