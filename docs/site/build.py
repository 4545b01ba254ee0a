"""Builds the documentation site: copies the pages, runs the generator, and checks what came out.

`sh docs/site/build.sh` runs this file in an environment that has the generator.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import checks
import sources

REPOSITORY: Final = Path(__file__).parents[2]
BUILD: Final = REPOSITORY / "build/site"
HERE: Final = Path(__file__).parent

# The browser itself refuses to load anything from another host, whatever a theme or a page asks for.
POLICY: Final = (
    "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; worker-src 'self' blob:; object-src 'none'; base-uri 'self'"
)


def main() -> int:
    html = BUILD / "html"
    for folder in (BUILD / "pages", html):
        shutil.rmtree(folder, ignore_errors=True)
    sources.copy_pages(REPOSITORY, BUILD / "pages")
    shutil.copy(HERE / "mkdocs.yml", BUILD / "mkdocs.yml")
    shutil.copytree(HERE / "style", BUILD / "pages/style")
    generator = Path(sys.executable).with_name("zensical")
    done = subprocess.run([generator, "build", "--clean", "--strict"], cwd=BUILD, capture_output=True, text=True)
    if done.returncode != 0:
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        return 1
    for page in html.rglob("*.html"):
        add_policy(page)
    problems = [*checks.problems(html), *checks.pages_without_a_place(REPOSITORY, BUILD / "mkdocs.yml")]
    for problem in problems:
        print(problem, file=sys.stderr)
    if not problems:
        count = sum(1 for _ in html.rglob("*.html"))
        print(
            f"{count} pages in {html.relative_to(REPOSITORY)}; to read them: python3 -m http.server -d build/site/html"
        )
    return 1 if problems else 0


def add_policy(page: Path) -> None:
    text = page.read_text()
    meta = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    page.write_text(text.replace("<head>", f"<head>{meta}", 1))


if __name__ == "__main__":
    sys.exit(main())
