"""The product contains no code that runs data: no pickle, no eval, no shell, and no `random` for ids or secrets."""

import ast
from collections.abc import Iterator

from .source import Source, product

BANNED_MODULES = frozenset({"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle", "imp"})
BANNED_CALLS = frozenset({"eval", "exec", "compile", "__import__"})
BANNED_ATTRIBUTES = frozenset({("os", "system"), ("os", "popen"), ("yaml", "load"), ("yaml", "unsafe_load")})
# Modules that draw numbers, and what for. None of them is an id, a key or a token: those come from `secrets`.
RANDOM = {
    "executors/host.py": "spreads retries",
    "executors/remote_host.py": "spreads retries",
    "store/checking.py": "chooses a sample of tasks",
    "store/postgres/connecting.py": "spreads reconnections",
    "client/outages.py": "spreads retries",
    "worker/socket_thread.py": "spreads retries",
}
LOAD = ("/bench/", "stepwire_conform/", "/simulation/")  # pseudo-random load, repeated by its seed


def imported(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def calls(source: Source) -> Iterator[ast.Call]:
    return (node for node in ast.walk(source.tree) if isinstance(node, ast.Call))


def test_the_product_reads_no_format_that_can_run_code() -> None:
    assert [(s.path, name) for s in product() for name in imported(s) if name in BANNED_MODULES] == []


def test_the_product_evaluates_no_text() -> None:
    found = []
    for source in product():
        for call in calls(source):
            match call.func:
                case ast.Name(id=name) if name in BANNED_CALLS:
                    found.append((source.path, call.lineno, name))
                case ast.Attribute(value=ast.Name(id=module), attr=name) if (module, name) in BANNED_ATTRIBUTES:
                    found.append((source.path, call.lineno, f"{module}.{name}"))
                case _:
                    pass
    assert found == []


def test_the_product_starts_no_program_through_a_shell() -> None:
    shells = [
        (source.path, call.lineno)
        for source in product()
        for call in calls(source)
        for keyword in call.keywords
        if keyword.arg == "shell" and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is False)
    ]
    assert shells == []


def test_random_serves_only_the_listed_purposes() -> None:
    users = [
        str(s.path) for s in product() if "random" in imported(s) and not any(room in str(s.path) for room in LOAD)
    ]
    assert [path for path in users if not path.endswith(tuple(RANDOM))] == []
    assert [path for path in RANDOM if not any(user.endswith(path) for user in users)] == [], "no longer true"
