"""Runs the programs of docs/how-to/six-languages.md: `python -m tests.languages.page go`.

The program of the language is taken from the page, built with the SDK of this clone, and run as a worker against a
broker. The page's program in Python runs the first step. Then the tasks of the page are submitted.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tests.docs.pages import blocks
from tests.system.harness import Program, Site, eventually

from .sdks import ROOT, SDKS, Sdk

PAGE: Final = ROOT / "docs/how-to/six-languages.md"
BUILD_BOUND_S: Final = 300.0
TASK_BOUND_S: Final = 30.0
GO_MODULE: Final = "github.com/stepwire/stepwire/handlers_sdk/go"


class Prepared(NamedTuple):
    """A program that is ready to run."""

    command: tuple[str, ...]
    environ: Mapping[str, str] = {}


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] not in SDKS:
        sys.exit(f"usage: python -m tests.languages.page {' | '.join(sorted(SDKS))}")
    sdk = SDKS[sys.argv[1]]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sw-page-") as name:
        prepared = PREPARE[sdk.name](sdk, write_files(Path(name)))
        built_s = time.monotonic() - began
        run(sdk, prepared, Path(name))
    print(f"{sdk.name}: built in {built_s:.0f} s, ran in {time.monotonic() - began - built_s:.0f} s")


def write_files(directory: Path) -> Path:
    """Write every file of the page, and return the directory."""
    files = [block for block in blocks(PAGE.read_text()) if block.word == "file"]
    for block in files:
        path = directory / block.rest
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
    assert len(files) == 2 + len(SDKS), f"the page has {len(files)} files"
    return directory


# -- building, as the README of each SDK shows it ----------------------------------------------------------------------


def _python(_: Sdk, directory: Path) -> Prepared:
    return Prepared((sys.executable, str(directory / "payments.py")))


def _ruby(sdk: Sdk, directory: Path) -> Prepared:
    return Prepared(("ruby", "-I", str(sdk.folder / "lib"), str(directory / "payments.rb")))


def _go(sdk: Sdk, directory: Path) -> Prepared:
    _call(directory, "go", "mod", "init", "example.com/shop")
    _call(directory, "go", "mod", "edit", f"-require={GO_MODULE}@v0.1.0", f"-replace={GO_MODULE}={sdk.folder}")
    _call(directory, "go", "mod", "tidy")
    _call(directory, "go", "build", "-o", "payments", ".")
    return Prepared((str(directory / "payments"),))


def _node(sdk: Sdk, directory: Path) -> Prepared:
    (directory / "package.json").write_text('{"type": "module"}')
    (directory / "node_modules").mkdir()
    (directory / "node_modules/stepwire").symlink_to(sdk.folder)
    return Prepared(("node", str(directory / "payments.js")))


def _rust(sdk: Sdk, directory: Path) -> Prepared:
    (directory / "Cargo.toml").write_text(
        '[package]\nname = "payments"\nversion = "0.1.0"\nedition = "2021"\n\n[dependencies]\n'
        f'serde = {{ version = "1", features = ["derive"] }}\nstepwire = {{ path = "{sdk.folder}" }}\n'
    )
    (directory / "Cargo.lock").write_bytes((sdk.folder / "Cargo.lock").read_bytes())
    target = sdk.folder / "target/six-languages"  # kept between runs: the SDK is compiled once
    _call(directory, "cargo", "build", "--quiet", environ={"CARGO_TARGET_DIR": str(target)})
    return Prepared((str(target / "debug/payments"),))


def _java(sdk: Sdk, directory: Path) -> Prepared:
    path = f"{sdk.folder}/target/classes:{(sdk.folder / 'target/classpath').read_text().strip()}"
    _call(directory, "javac", "--release", "17", "-cp", path, "-d", "classes", "src/main/java/shop/Payments.java")
    return Prepared(("java", "-cp", f"{directory}/classes:{path}", "shop.Payments"))


PREPARE: Final[dict[str, Callable[[Sdk, Path], Prepared]]] = {
    "python": _python,
    "ruby": _ruby,
    "go": _go,
    "node": _node,
    "rust": _rust,
    "java": _java,
}


def _call(directory: Path, *words: str, environ: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        words,
        cwd=directory,
        env=os.environ | dict(environ or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_BOUND_S,
    )
    assert done.returncode == 0, f"{' '.join(words)} failed:\n{done.stdout}{done.stderr}"


# -- running -----------------------------------------------------------------------------------------------------------


def run(sdk: Sdk, prepared: Prepared, directory: Path) -> None:
    with Site(sdk.transport) as site:
        site.start_broker()
        site.apply(yaml.safe_load((directory / "orders.yaml").read_text()))
        site.start_other_worker("check", (sys.executable, str(directory / "check.py")))
        worker = site.start_other_worker("payments", prepared.command)
        try:
            _check(site, worker)
        except AssertionError as error:
            raise AssertionError(f"{sdk.name}: {error}\n--- the worker wrote\n{worker.stderr[-3000:]}") from error
        worker.ask_to_end()
        assert worker.wait() == 0, f"{sdk.name}: the worker ended with {worker.process.returncode}"


def _check(site: Site, worker: Program) -> None:
    charged = _pay(site, {"order_id": 7, "cents": 1200})
    assert charged["state"] == "completed", charged
    assert charged["attempt"] == 1, charged
    assert charged["output"]["currency"] == "EUR", charged
    assert charged["output"]["receipt"].endswith("/pay"), charged
    eventually(lambda: " pay attempt 2: charging order 7" in worker.stderr, "the line that the handler logged")

    too_much = _pay(site, {"order_id": 8, "cents": 60000})
    assert (too_much["state"], too_much["attempt"]) == ("failed", 0), too_much
    assert too_much["error"]["code"] == "over_limit", too_much
    assert too_much["error"]["message"] == "the amount is above the limit", too_much

    no_order = _pay(site, {"order_id": 9, "cents": "many"})
    assert (no_order["state"], no_order["error"]["code"]) == ("failed", "bad_input"), no_order


def _pay(site: Site, context: dict[str, Any]) -> dict[str, Any]:
    """Submit a task, wait for its end, and return its step `pay`."""
    client = site.client()
    task = client.submit("orders", context)
    client.wait(task.task_id, timeout=TASK_BOUND_S)
    return next(step for step in site.task(task.task_id)["steps"] if step["name"] == "pay")


if __name__ == "__main__":
    main()
