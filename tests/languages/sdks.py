"""The SDKs, and the programs that each of them ships for tests: a conformance worker and a driver of its session."""

import sys
from pathlib import Path
from typing import Final, Literal, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "handlers_sdk"
REPORTS: Final = ROOT / "build/conform"  # the report of the kit for each SDK; git ignores it


class Sdk(NamedTuple):
    """One SDK. `check.sh build` in its folder makes both programs ready, and installs what they need."""

    name: str
    transport: Literal["ipc", "tcp"]
    conform: tuple[str, ...]
    driver: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return FOLDER / self.name


def _of(name: str, transport: Literal["ipc", "tcp"] = "ipc") -> Sdk:
    folder = FOLDER / name / "bin"
    return Sdk(name, transport, (str(folder / "conform"),), (str(folder / "driver"),))


SDKS: Final[dict[str, Sdk]] = {
    sdk.name: sdk
    for sdk in (
        Sdk("python", "ipc", (sys.executable, "-m", "stepwire.conform"), (sys.executable, "-m", "stepwire.driver")),
        _of("go"),
        _of("java", "tcp"),  # JeroMQ has no Unix sockets
        _of("node"),
        _of("ruby"),
        _of("rust"),
    )
}
