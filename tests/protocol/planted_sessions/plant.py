"""Makes a driver of a session with one fault: a text of one module is replaced, and the SDK is imported again."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

import stepwire

ROOT: Final = Path(stepwire.__file__).parent
# What a fault may touch, and what has imported it. The protocol and the rest of the SDK are shared.
OWN: Final = ("stepwire.session", "stepwire.actions", "stepwire.driver", "stepwire.runners.run_slots")


class Fault(NamedTuple):
    """One planted fault. The text occurs once in the file, whose path is relative to the SDK."""

    name: str
    file: str
    right: str
    wrong: str

    def text(self) -> str:
        """The file with the fault. Raises AssertionError if the right text does not occur once."""
        source = (ROOT / self.file).read_text()
        assert source.count(self.right) == 1, f"{self.name!r}: the text occurs {source.count(self.right)} times"
        return source.replace(self.right, self.wrong)


def driver_with(fault: Fault | None) -> type[Any]:
    """The class `Driver` around the session with this fault. The modules of the process are unchanged."""
    with _without_own_modules():
        if fault is not None:
            sys.meta_path.insert(0, _Planter(fault))
        try:
            driver: type[Any] = importlib.import_module("stepwire.driver").Driver
        finally:
            if fault is not None:
                del sys.meta_path[0]
    return driver


@contextmanager
def _without_own_modules() -> Iterator[None]:
    def is_own(name: str) -> bool:
        return any(name == own or name.startswith(own + ".") for own in OWN)

    kept = {name: module for name, module in sys.modules.items() if is_own(name)}
    attributes = dict(vars(stepwire))
    for name in kept:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if is_own(name)]:
            del sys.modules[name]
        sys.modules.update(kept)
        vars(stepwire).update(attributes)


class _Planter:
    """Finds the module with the fault, and compiles its changed text."""

    def __init__(self, fault: Fault) -> None:
        self._name = "stepwire." + fault.file.removesuffix(".py").replace("/", ".")
        self._text = fault.text()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return importlib.util.spec_from_loader(name, self) if name == self._name else None  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._text, f"<planted {self._name}>", "exec"), vars(module))
