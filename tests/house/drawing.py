"""The drawings of docs/contributing/architecture.md, made from the import graph: `python -m tests.house.drawing`.

An arrow means "imports". An arrow is left out where a longer path of arrows says the same.
"""

from collections.abc import Callable

import grimp

from .source import ROOT

PAGE = ROOT / "docs/contributing/architecture.md"
BEGIN, END = "<!-- drawn: {} -->", "<!-- end of the drawing -->"


def room_of_product(module: str) -> str | None:
    """`stepwire_broker.api.tasks` is in `api`; the protocol and the SDK are one room each."""
    package, _, rest = module.partition(".")
    if package in ("stepwire_protocol", "stepwire"):
        return {"stepwire_protocol": "protocol", "stepwire": "sdk"}[package]
    return rest.split(".")[0] or None


# Two rooms of the core have a module above the state, which holds the data that the rest of the room defines.
ABOVE_THE_STATE = {"guards.allowance", "shadows.copies"}


def room_of_core(module: str) -> str | None:
    name = module.removeprefix("stepwire_broker.core.")
    if name == module or name in ABOVE_THE_STATE:
        return name if name in ABOVE_THE_STATE else None
    return name.split(".")[0]


THE_COMMAND = "stepwire.__main__"  # belongs to the broker, although it is in the SDK's package

DRAWINGS: dict[str, Callable[[str], str | None]] = {"product": room_of_product, "core": room_of_core}


def drawn(room_of: Callable[[str], str | None]) -> str:
    graph = grimp.build_graph("stepwire_broker", "stepwire_protocol", "stepwire")
    edges: dict[str, set[str]] = {}
    for module in sorted(graph.modules - {THE_COMMAND}):
        room = room_of(module)
        for imported in graph.find_modules_directly_imported_by(module):
            other = room_of(imported)
            if room is not None and other is not None and room != other:
                edges.setdefault(room, set()).add(other)
    lines = ["```mermaid", "flowchart TD"]
    for room in sorted(edges):
        direct = edges[room] - {far for near in edges[room] for far in _reached(edges, near, {room})}
        lines += [f"    {room} --> {other}" for other in sorted(direct)]
    return "\n".join([*lines, "```"])


def page() -> str:
    """The page with fresh drawings in the places that its comments name."""
    text = PAGE.read_text()
    for name, room_of in DRAWINGS.items():
        before, _, rest = text.partition(BEGIN.format(name))
        _, _, after = rest.partition(END)
        text = f"{before}{BEGIN.format(name)}\n\n{drawn(room_of)}\n\n{END}{after}"
    return text


def _reached(edges: dict[str, set[str]], start: str, passed: set[str]) -> set[str]:
    """Every room behind `start`, without those in `passed`."""
    reached: set[str] = set()
    ahead = [start]
    while ahead:
        for room in edges.get(ahead.pop(), set()) - reached - passed:
            reached.add(room)
            ahead.append(room)
    return reached - {start}


if __name__ == "__main__":
    PAGE.write_text(page())
