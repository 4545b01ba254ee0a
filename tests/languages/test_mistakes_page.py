"""`handlers_sdk/mistakes.md` is complete. `python -m tests.languages.mistakes` checks that the SDKs print it."""

import pytest

from .mistakes import page
from .mistakes.made import Bench
from .mistakes.sentence import faults
from .mistakes.table import LANGUAGES, MISTAKES, Mistake


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=lambda mistake: mistake.name)
def test_the_page_names_the_mistake_with_a_sentence_for_each_language(mistake: Mistake) -> None:
    sentences = page.read().get(mistake.name, {})
    assert sorted(sentences) == sorted(set(LANGUAGES) - set(mistake.absent))
    for sentence in sentences.values():
        assert faults(sentence, mistake.must_have) == []
    assert mistake.differs or len(set(sentences.values())) == 1


def test_the_page_is_written_from_its_own_sentences_without_a_change() -> None:
    assert page.written(page.read()) == page.PAGE.read_text()


def test_every_mistake_of_the_table_can_be_made() -> None:
    assert [name for name in MISTAKES if not callable(getattr(Bench, name, None))] == []
