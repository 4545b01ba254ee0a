"""The product's texts are plain technical English: see docs/contributing/style.md."""

from . import language


def test_the_texts_of_the_product_follow_the_style() -> None:
    assert [str(finding) for finding in language.of_product()] == []


def test_the_names_of_the_tests_follow_the_style() -> None:
    assert [str(finding) for finding in language.of_tests()] == []


def test_the_pages_follow_the_style() -> None:
    assert [str(finding) for finding in language.of_pages()] == []
