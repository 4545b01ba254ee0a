"""`stepwire workflow`: print, draw, validate and activate workflows."""

import json

import pytest

from .a_place import Place

OK, FAILURE, USAGE, NOT_FOUND = range(4)

DIAMOND = """
name: diamond
namespace: shop
version: "{version}"
steps:
  - {{name: end, handler_class: h, depends_on: [left, right]}}
  - {{name: left, handler_class: h, depends_on: [begin]}}
  - {{name: right, handler_class: h, depends_on: [begin], timeout_ms: 5000}}
  - {{name: begin, handler_class: h}}
"""

TEXT = """\
shop::diamond 1
  begin
    left  after begin
    right  after begin
      end  after left, right
"""
MERMAID = """\
flowchart TD
  s0["end"]
  s1["left"]
  s2["right"]
  s3["begin"]
  s1 --> s0
  s2 --> s0
  s3 --> s1
  s3 --> s2
"""
DOT = r"""digraph "shop::diamond 1" {
  rankdir=TB;
  node [shape=box, style=rounded];
  s0 [label="end"];
  s1 [label="left"];
  s2 [label="right"];
  s3 [label="begin"];
  s1 -> s0;
  s2 -> s0;
  s3 -> s1;
  s3 -> s2;
}
"""


@pytest.mark.parametrize(("form", "drawn"), [("text", TEXT), ("mermaid", MERMAID), ("dot", DOT)])
def test_a_workflow_is_drawn_without_a_broker(empty: Place, form: str, drawn: str) -> None:
    (empty.directory / "diamond.yaml").write_text(DIAMOND.format(version=1))
    done = empty.stepwire("workflow", "graph", "diamond.yaml", "-o", form)
    assert (done.code, done.out, done.err) == (OK, drawn, "")


def test_a_stored_workflow_is_drawn_printed_and_activated(shop: Place) -> None:
    for version in ("1", "2"):
        (shop.directory / f"diamond{version}.yaml").write_text(DIAMOND.format(version=version))
        assert shop.stepwire("workflow", "apply", f"diamond{version}.yaml").code == OK
    assert shop.stepwire("workflow", "graph", "shop::diamond").out.startswith("shop::diamond 2\n")
    assert shop.stepwire("workflow", "graph", "diamond", "--namespace", "shop", "--version", "1").out == TEXT

    shown = shop.stepwire("workflow", "show", "shop::diamond")
    assert shown.out.startswith("shop::diamond 2  active, created ")
    assert "right\th\tbegin\tat_least_once\t-\t5000 ms\n" in shown.out
    assert shop.stepwire("workflow", "show", "shop::diamond", "--json").json["document"]["name"] == "diamond"

    done = shop.stepwire("workflow", "activate", "shop::diamond", "1")
    assert (done.code, done.out) == (OK, "shop::diamond 1 is the active version\n")
    assert shop.stepwire("workflow", "show", "shop::diamond", "--json").json["version"] == "1"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["show", "shop::nothing"], NOT_FOUND),
        (["show", "shop::order", "--version", "99"], NOT_FOUND),
        (["activate", "shop::order", "99"], NOT_FOUND),
        (["graph", "shop::nothing"], NOT_FOUND),
        (["graph", "nowhere.yaml"], USAGE),
        (["graph", "shop::order", "-o", "picture"], USAGE),
        (["graph", "worker.yaml"], USAGE),
    ],
)
def test_a_missing_workflow_has_an_exit_code(shop: Place, words: list[str], code: int) -> None:
    (shop.directory / "worker.yaml").write_text("name: [")
    done = shop.stepwire("workflow", *words)
    assert (done.code, done.out) == (code, "")
    assert "Traceback" not in done.err


def test_a_list_names_the_active_version(shop: Place) -> None:
    rows = [json.loads(line) for line in shop.stepwire("workflow", "list", "-o", "jsonl").out.splitlines()]
    assert {"order", "slow"} <= {row["name"] for row in rows if row["active"]}


PYTHON = """
from stepwire import Workflow

diamond = Workflow("diamond", namespace="shop", version="python")
begin = diamond.step("begin", "h")
left = diamond.step("left", "h", depends_on=[begin])
diamond.step("end", "h", depends_on=[left, begin])
"""


def test_a_workflow_in_python_is_validated_drawn_and_applied(shop: Place) -> None:
    (shop.directory / "diamond.py").write_text(PYTHON)
    assert shop.stepwire("workflow", "validate", "diamond.py").out == "diamond.py: valid\n"
    assert "end  after left, begin" in shop.stepwire("workflow", "graph", "diamond.py:diamond").out
    done = shop.stepwire("workflow", "apply", "diamond.py", "--no-activate")
    assert (done.code, done.out) == (OK, "shop::diamond python applied\n")
    assert "stepwire workflow activate shop::diamond python" in done.err
    assert "stepwire task submit shop::diamond --version python" in done.err
    assert "is unchanged" in shop.stepwire("workflow", "apply", "diamond.py:diamond", "--no-activate").out


@pytest.mark.parametrize(
    ("added", "name", "message"),
    [
        ('diamond.step("begin", "h")', "w.py", "w.py:8: step 'begin': diamond already has a step with this name"),
        ('diamond.step("x", "h", delivery_mode="at_most_once", retry_limit=1)', "w.py", "w.py:8: steps[3].retry_limit"),
        ("1 / 0", "w.py", "w.py:8: ZeroDivisionError: division by zero"),
        ("x =", "w.py", "w.py:8: SyntaxError: invalid syntax"),
        ("", "w.py:dimond", "w.py has no workflow dimond; it has diamond"),
        ('other = Workflow("other")', "w.py", "w.py has several workflows; name one: w.py:diamond or w.py:other"),
        ("del diamond", "w.py", "w.py has no workflow"),
        ("", "missing.py", "missing.py is not a file"),
    ],
)
def test_an_error_in_python_is_reported_with_its_line(empty: Place, added: str, name: str, message: str) -> None:
    (empty.directory / "w.py").write_text(f"{PYTHON}{added}\n")
    done = empty.stepwire("workflow", "validate", name)
    assert done.code == USAGE
    assert message in done.err


def test_the_schema_is_printed_for_editors(empty: Place) -> None:
    assert empty.stepwire("workflow", "schema").json["title"] == "Stepwire workflow"


def test_an_unreadable_file_does_not_hide_problems_of_others(empty: Place) -> None:
    (empty.directory / "bad.yaml").write_text("name: w\n")
    done = empty.stepwire("workflow", "validate", "nowhere.yaml", "bad.yaml")
    assert done.code == USAGE
    assert "nowhere.yaml cannot be read: No such file" in done.err
    assert "bad.yaml:1: the workflow has no steps" in done.err
