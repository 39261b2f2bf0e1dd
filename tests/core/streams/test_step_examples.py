"""The example programs of stateless steps, in the test kit; their text is the tutorial's."""

from __future__ import annotations

from holdfast.testing import Topology
from tests.core.streams.joins.test_join_examples import example
from tests.support.places import ROOT, example_file
from tests.test_tutorial import files


def test_the_words_of_lines_are_counted() -> None:
    of = example("word_count.py")
    with Topology([of.words, of.counts]) as topology:
        topology.pipe(of.lines, "To be")
        topology.pipe(of.lines, "or not to be", partition=2)
        assert topology.table(of.counts) == {"be": 2, "not": 1, "or": 1, "to": 2}
        told = {(each.key, each.value) for each in topology.read("word-counts")}
        assert (b"to", b"2") in told
        assert not topology.refused


def test_the_tutorial_shows_the_example_as_it_is() -> None:
    page = (ROOT / "docs" / "tutorial-streams.md").read_text()
    assert files(page)["word_count.py"] == example_file("word_count.py").read_text()
