"""`stepwire new`: creates a project directory with a working handler and its test."""

import re
from pathlib import Path
from string import Template
from typing import Final

import click

from . import output
from .confirmation import confirm
from .failure import Exit, Failure, leave, usage
from .options import Options, StepwireCommand

TEMPLATES: Final = Path(__file__).parent / "templates"
NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")

# By language: each file's name in the new directory, and its template.
FILES: Final = {
    "python": {
        "worker.py": "worker.py.in",
        "test_worker.py": "test_worker.py.in",
        "workflow.yaml": "workflow.yaml.in",
        "Procfile": "Procfile.in",
        "stepwire.yaml": "stepwire.yaml.in",
        "README.md": "README.md.in",
        ".gitignore": "gitignore.in",
    }
}


@click.command(cls=StepwireCommand)
@click.argument("directory", metavar="NAME", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--lang", type=click.Choice(list(FILES)), default="python", show_default=True, help="Language of the handler."
)
@click.pass_obj
def new(options: Options, directory: Path, lang: str) -> None:
    """Create a directory with a one-handler worker, its test, a workflow and a README. NAME may be a path,
    or `.` for the current directory."""
    directory_name = directory.resolve().name  # of `.` too
    name = directory_name.replace("-", "_")
    if not NAME.fullmatch(name):
        usage(f"{directory_name!r} cannot name a workflow: use lower-case letters, digits, _ and -, a letter first")
    is_taken = directory.exists() and any(directory.iterdir())
    if is_taken and not confirm(options, f"{directory} exists and is not empty: write into it?"):
        leave(Exit.FAILURE)
    written = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for file, template in FILES[lang].items():
            text = Template((TEMPLATES / lang / template).read_text(encoding="utf-8")).substitute(name=name)
            (directory / file).write_text(text, encoding="utf-8")
            written.append(str(directory / file))
    except OSError as error:
        raise Failure(Exit.FAILURE, f"{error.filename} cannot be written: {error.strerror}") from None
    document = {"directory": str(directory), "files": written}
    output.one(options, document, f"created {directory}: {', '.join(FILES[lang])}")
    change = "" if directory.resolve() == Path.cwd() else f"cd {directory} && "
    output.note(options, f"next: {change}stepwire dev")
