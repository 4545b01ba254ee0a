"""Builds the package of each SDK, installs it into an empty project, and runs the quickstart there.

    python -m tests.languages.release [LANG …] [--keep DIRECTORY]

A package is built from a copy of the committed files, and its contents are compared with them. The project has nothing
but the code of the SDK's README and the package, which it gets from a local file or registry. Its worker runs one task
of a real broker, and ends on SIGTERM. The last lines have the sizes. With --keep, the checked packages are copied to
that folder. Python's packages are those of `tests/packages`.
"""

import argparse
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, NamedTuple

from tests.system.harness import Site, Stuck, eventually

from .packages import PACKAGES, Package, Work, WrongPackage
from .sdks import SDKS

END_BOUND_S: Final = 15.0
CONTEXT: Final = '{"order_id": 7}'
_FILE: Final = re.compile(r"^<!-- file: (?P<name>\S+) -->\n+```[^\n]*\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LOG_LINE: Final = re.compile(r"task \d+ step \d+ \S+: .*shipping")


class Sizes(NamedTuple):
    """The size of the package, and that of the installed worker, without its language and libzmq."""

    language: str
    packages: dict[str, int]
    worker: int
    took_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("languages", nargs="*", help=f"from {', '.join(PACKAGES)}; all by default")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="copy the checked packages to this folder")
    options = parser.parse_args()
    for name in options.languages:
        if name not in PACKAGES:
            parser.error(f"{name}: there are {', '.join(PACKAGES)}")
    sizes: list[Sizes] = []
    failed = False
    for name in options.languages or PACKAGES:
        scratch = Path(tempfile.mkdtemp(prefix="sw-"))
        try:
            sizes.append(released(name, scratch, options.keep))
        except (WrongPackage, Stuck, AssertionError) as error:
            print(f"FAILED  {name}: {error}\nthe files are in {scratch}")
            failed = True
        else:
            shutil.rmtree(scratch)
    for one in sizes:
        files = ", ".join(f"{name} {_readable(size)}" for name, size in one.packages.items())
        print(f"{one.language:7} {files}; installed worker {_readable(one.worker)}; {one.took_s:.0f} s")
    sys.exit(failed)


def released(language: str, scratch: Path, keep: Path | None) -> Sizes:
    """Build, check, install and run the package of one SDK."""
    began = time.monotonic()
    package = PACKAGES[language]
    work = Work(scratch, SDKS[language].folder)
    work.copy_source()
    files = package.build(work)
    package.check(work, files)
    quickstart(work, package)
    package.install(work, files)
    run(language, work, package)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(file, keep)
    took_s = time.monotonic() - began
    return Sizes(
        language,
        {file.name: file.stat().st_size for file in files},
        sum(_bytes_below(path) for path in package.worker(work)),
        took_s,
    )


def quickstart(work: Work, package: Package) -> None:
    """Write the files of the README's quickstart into an empty project."""
    page = {found["name"]: found["text"] for found in _FILE.finditer((work.folder / "README.md").read_text())}
    for name in (*package.sources, package.workflow):
        if name not in page:
            raise WrongPackage(f"README.md has no block `<!-- file: {name} -->`")
        file = work.project / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(page[name])


def run(language: str, work: Work, package: Package) -> None:
    """Run one task of the quickstart on a real broker."""
    workflow = work.project / package.workflow
    name = re.search(r"^name: *(\S+)", workflow.read_text(), re.MULTILINE)
    assert name, f"{workflow} has no name"
    with Site(SDKS[language].transport) as site:
        site.start_broker()
        worker = site.start("quickstart", package.command(work), work.environ)
        site.await_worker(worker)
        applied = site.stepwire("workflow", "apply", str(workflow))
        assert applied.returncode == 0, applied.stderr
        task = site.stepwire("task", "submit", name[1], "--context", CONTEXT, "--wait")
        assert task.returncode == 0, f"{task.stdout}{task.stderr}\nthe worker:\n{worker.stderr}"
        assert "completed" in task.stdout, task.stdout
        eventually(lambda: _LOG_LINE.search(worker.stderr), "the handler's log line, with the ids of its step")
        worker.ask_to_end()
        code = worker.wait(END_BOUND_S)
        assert code == 0, f"the worker ended with {code}:\n{worker.stderr}"


def _bytes_below(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())


def _readable(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


if __name__ == "__main__":
    main()
