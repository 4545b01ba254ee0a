"""The commands of the documentation work, and do what their page says."""

import ast
import re
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from tests.house.source import product

from . import pages
from .reader import Reader, Wrong, first_missing

PAGES = {str(path.relative_to(pages.REPOSITORY)): path for path in pages.pages()}
DOCUMENTS = {str(path.relative_to(pages.REPOSITORY)): path for path in pages.documents()}
LINK = re.compile(r"\[[^\]]*\]\((?!https?:|mailto:)(?P<path>[^)#\s]*)(?:#(?P<place>[^)\s]+))?\)")


def has_ruby() -> bool:
    """True if Ruby and its ZeroMQ binding are installed."""
    probe = ["ruby", "-e", "require 'ffi-rzmq'"]
    return shutil.which("ruby") is not None and subprocess.run(probe, capture_output=True, timeout=60).returncode == 0


@pytest.mark.parametrize("name", PAGES)
def test_the_text_above_a_file_names_the_file(name: str) -> None:
    paragraphs = PAGES[name].read_text().split("\n\n")
    for above, paragraph in pairwise(paragraphs):
        if file := re.match(r" *<!-- file: (?P<path>.+?) -->\n", paragraph):
            assert file["path"] in above, f"a reader cannot see that the next block is {file['path']}"


@pytest.mark.skipif(not has_ruby(), reason="no Ruby with ffi-rzmq here")
def test_the_ruby_program_of_the_guide_runs(reader: Reader) -> None:
    text = PAGES["protocol/SDK_GUIDE.md"].read_text()
    first_part = text[: text.index("## 2.")].replace("python handler.py", "ruby handler.rb")
    reader.read(
        first_part.replace('"by":"python"', '"by":"ruby"')
        .replace("KeyError('order_id')", "…")
        .replace("ValueError(…", "…")
    )


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_link_has_a_target(name: str) -> None:
    text = DOCUMENTS[name].read_text()
    for link in LINK.finditer(text):
        path = (DOCUMENTS[name].parent / link["path"]) if link["path"] else DOCUMENTS[name]
        assert path.exists(), link[0]
        if link["place"]:
            assert link["place"] in places(path.read_text()), link[0]


def places(text: str) -> set[str]:
    """The anchors of a page's headings, as the usual viewers make them."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_a_message_in_the_troubleshooting_page_is_one_that_the_product_prints() -> None:
    texts = "\n".join(
        node.value
        for source in product()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    page = PAGES["docs/how-to/troubleshooting.md"].read_text()
    first_cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| ")]
    messages = [message for cell in first_cells for message in re.findall(r"`([^`]+)`", cell)]
    pieces = [piece.strip(" :,") for message in messages for piece in message.split("…")]
    assert len(pieces) > 20
    assert [piece for piece in pieces if piece and piece not in texts] == []


# -- the reader itself ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```sh\nfalse\n```", "the exit code is 1"),
        ("```sh\nfalse\ntrue\n```", "the exit code is 1"),
        ("```console\n$ echo one\ntwo\n```", "no line like"),
        ("```console\n$ printf 'b\\na\\n'\na\nb\n```", "no line like"),
        ("```console\n$ exit 3\n```", "the exit code is 3, not 0"),
        ("```console\n$ true\n[exit 3]\n```", "the exit code is 0, not 3"),
        ("```console\necho one\n```", "begins with"),
        ("```python\nassert False\n```", "the exit code is 1"),
        ("```yaml\nname: w\nsteps: []\n```", "the workflow has no steps"),
        ("```yaml\nbus: {lese: 5s}\n```", "not a known setting"),
        ("```bash\ntrue\n```", "'bash' is none of"),
        ("```sh\ntrue\n", "does not end"),
        ("<!-- not run: for a reason -->\nwords", "is above no block"),
        ("<!-- setup\n$ true\n-->", "hides something"),
        ("<!-- file: hidden.py\nprint()\n-->", "hides something"),
        ("words <!-- and a secret -->", "hides something"),
        ("<!-- not run, parsed: it is of another product -->\n```python\ndef\n```", "the Python is not valid"),
        ("<!-- not run, parsed: it is of another product -->\n```yaml\na: b\n```", "cannot be parsed here"),
        ("<!-- terminal: t -->\n```console\n$ echo ready\nsteady\n```", "has not printed"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_page_is_found(text: str, says: str, reader: Reader) -> None:
    with pytest.raises((Wrong, pages.Malformed), match=re.escape(says)):
        reader.read(text)


def test_a_correct_page_is_run(reader: Reader, tmp_path: Path) -> None:
    page = (
        "<!-- file: deep/a.txt -->\n```text\none\n```\n"
        "```sh\ncd deep\nNAME=two\n```\n"
        "```console\n$ cat a.txt && \\\n> echo $NAME 17\none\n…\ntw… 99\n```\n"
        "<!-- terminal: t -->\n```console\n$ sh -c 'echo ready 1; sleep 60'\nready 2\n```\n"
        "<!-- seen in: t -->\n```text\nready 3\n```\n"
        "```console\n$ sh -c 'echo 1; sleep 60' &\n1\n$ exit 3\n[exit 3]\n```\n"
        "<!-- in the clone: tests/docs -->\n```console\n$ ls tests/docs\nreader.py\n```\n"
        "<!-- not run, parsed: it is of another product -->\n```python\nraise SystemExit(1)\n```\n"
        "<!-- not run: it would hurt -->\n```sh\nrm -rf deep\n```\n"
        "```python\nprint(open('a.txt').read())\n```\n"
    )
    reader.read(page)
    assert (tmp_path / "deep/a.txt").read_text() == "one\n"


def test_lines_are_compared_loosely() -> None:
    output = "task 6591   completed\nat 2026-11-18\n"
    assert first_missing(["task 1 completed", "at 1-2-3"], output) is None
    assert first_missing(["task … completed"], output) is None
    assert first_missing(["task 1"], output) == "task 1"
    assert first_missing(["at 1-2-3", "task 1 completed"], output) == "task 1 completed"
