"""The documentation site: what its build refuses. `sh docs/site/build.sh` builds the site itself."""

import importlib
import sys
from pathlib import Path

import pytest

from .pages import REPOSITORY

sys.path.insert(0, str(REPOSITORY / "docs/site"))
checks = importlib.import_module("checks")
sources = importlib.import_module("sources")


@pytest.fixture
def html(tmp_path: Path) -> Path:
    """A built site that has no problem."""
    for number in range(50):
        (tmp_path / f"page{number}.html").write_text(f'<h1 id="top">{number}</h1><a href="page0.html#top">up</a>')
    (tmp_path / "search.json").write_text("{}")
    (tmp_path / "style.css").write_text("body { background: url(image.png) }")
    return tmp_path


def test_a_correct_site_has_no_problems(html: Path) -> None:
    assert list(checks.problems(html)) == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ('<a href="gone.html">x</a>', "links gone.html, which does not exist"),
        ('<a href="page0.html#gone">x</a>', "links page0.html#gone, and there is no such place"),
        ('<a href="#gone">x</a>', "links #gone, and there is no such place"),
        ('<script src="https://cdn.example/x.js"></script>', "loads https://cdn.example/x.js from another host"),
        ('<img src="//cdn.example/x.png">', "loads //cdn.example/x.png from another host"),
        ('<link rel="stylesheet" href="https://f.example/css">', "loads https://f.example/css from another host"),
        ('<link rel="preconnect" href="https://f.example">', "loads https://f.example from another host"),
        ("<style>@import 'https://f.example/css'</style>", "loads https://f.example/css by its style"),
        ('<p style="background: url(http://x.example/a.png)">', "loads http://x.example/a.png by its style"),
        ("<p>Both: <code>x</code>\n- one\n- two</p>", "needs an empty line above the list that begins '- one'"),
        ('<script src="gone.js"></script>', "loads gone.js, which does not exist"),
    ],
)  # fmt: skip
def test_a_page_with_a_problem_is_refused(html: Path, body: str, says: str) -> None:
    (html / "page1.html").write_text(body)
    assert list(checks.problems(html)) == [f"page1.html {says}"]


def test_a_style_sheet_that_loads_from_another_host_is_refused(html: Path) -> None:
    (html / "style.css").write_text("@font-face { src: url('https://f.example/a.woff2') }")
    assert list(checks.problems(html)) == ["style.css loads https://f.example/a.woff2"]


def test_a_link_to_another_site_is_allowed(html: Path) -> None:
    (html / "page1.html").write_text('<a href="https://zeromq.example/">ZeroMQ</a>')
    assert list(checks.problems(html)) == []


def test_every_page_has_a_place_in_the_navigation(tmp_path: Path) -> None:
    navigation = REPOSITORY / "docs/site/mkdocs.yml"
    assert list(checks.pages_without_a_place(REPOSITORY, navigation)) == []
    shorter = tmp_path / "mkdocs.yml"
    shorter.write_text(navigation.read_text().replace("docs/states.md", "docs/gone.md"))
    (problem,) = checks.pages_without_a_place(REPOSITORY, shorter)
    assert problem.startswith("docs/states.md has no place")


def test_the_copied_pages_show_linked_programs_and_drawings(tmp_path: Path) -> None:
    sources.copy_pages(REPOSITORY, tmp_path)
    assert "```mermaid" not in (tmp_path / "docs/states.md").read_text()
    assert "| `waiting` | `ready` | readied |" in (tmp_path / "docs/states.md").read_text()
    assert "(stepwire_broker/core/machine.py.md)" in (tmp_path / "broker/README.md").read_text()
    assert "def handle(" in (tmp_path / "broker/stepwire_broker/core/machine.py.md").read_text()
    assert (tmp_path / "docs/reference/config.schema.json").is_file()
