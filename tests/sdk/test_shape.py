"""The file map of the session in handlers_sdk/README.md, which other SDKs follow."""

import ast
import re
from pathlib import Path

from stepwire import session

SESSION = Path(session.__file__).parent
README = SESSION.parents[2] / "README.md"
FORBIDDEN = {"asyncio", "logging", "os", "queue", "random", "select", "socket", "threading", "time", "zmq"}


def mapped_files() -> list[str]:
    table = README.read_text().partition("| file | state |")[2]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def imports(name: str) -> tuple[set[str], set[str]]:
    """The modules of the session that this one imports, and the top-level packages."""
    nodes = list(ast.walk(ast.parse((SESSION / f"{name}.py").read_text())))
    own = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 1}
    packages = {
        (node.module or "").split(".")[0] for node in nodes if isinstance(node, ast.ImportFrom) and not node.level
    }
    packages |= {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return own, packages


def test_the_file_map_lists_every_file_of_the_session() -> None:
    assert sorted(mapped_files()) == sorted(path.stem for path in SESSION.glob("*.py") if path.stem != "__init__")


def test_each_file_imports_only_files_above_it_in_the_map() -> None:
    above: set[str] = set()
    for name in mapped_files():
        assert imports(name)[0] <= above, name
        above.add(name)


def test_the_session_imports_no_clock_socket_thread_or_randomness() -> None:
    for name in mapped_files():
        assert not imports(name)[1] & FORBIDDEN, name
