"""Checks the built site: every link and anchor has a target, nothing is loaded from another host, no page is lost."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import sources

_LOADS: Final = {
    ("script", "src"),
    ("img", "src"),
    ("source", "src"),
    ("iframe", "src"),
    ("video", "src"),
    ("audio", "src"),
    ("embed", "src"),
    ("object", "data"),
    ("form", "action"),
}
_LOADING_RELATIONS: Final = ("stylesheet", "preconnect", "preload", "dns-prefetch", "icon", "prefetch", "modulepreload")
_CSS_LOAD: Final = re.compile(r"(?:@import\s*|url\()\s*[\"']?(?P<url>(?:https?:)?//[^\"')\s]+)")
_INLINE: Final = ("a", "code", "em", "strong", "span")
_LIST_ITEM: Final = re.compile(r"\n(?:[-*]|\d+\.) .*")


class _Page(HTMLParser):
    """What a page links, what it loads, and the anchors it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.styles: list[str] = []
        self.broken_lists: list[str] = []
        self._in_style = False
        self._in_paragraph = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self._in_style = tag == "style"
        self._in_paragraph = tag == "p" or (self._in_paragraph and tag in _INLINE)
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        self.styles.append(values.get("style", ""))
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        self.loads += [values[name] for name in values if (tag, name) in _LOADS]
        if tag == "link" and any(word in _LOADING_RELATIONS for word in values.get("rel", "").split()):
            self.loads.append(values.get("href", ""))

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.styles.append(data)
        if self._in_paragraph and (item := _LIST_ITEM.search(data)):
            self.broken_lists.append(item[0].strip())

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False
        self._in_paragraph = self._in_paragraph and tag in _INLINE


def problems(html: Path) -> Iterator[str]:
    pages = {path.resolve(): _Page(path.read_text()) for path in html.rglob("*.html")}
    if len(pages) < 50:
        yield f"{html} has only {len(pages)} pages"
    for path, page in pages.items():
        name = path.relative_to(html.resolve())
        for load in page.loads:
            if urlsplit(load).netloc:
                yield f"{name} loads {load} from another host"
            elif load and not _file(path, load, html).exists():
                yield f"{name} loads {load}, which does not exist"
        for style in page.styles:
            yield from (f"{name} loads {load['url']} by its style" for load in _CSS_LOAD.finditer(style))
        yield from (f"{name} needs an empty line above the list that begins {item!r}" for item in page.broken_lists)
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = _file(path, link, html)
            if not target.exists():
                yield f"{name} links {link}, which does not exist"
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                yield f"{name} links {link}, and there is no such place"
    for sheet in html.rglob("*.css"):
        yield from (f"{sheet.name} loads {load['url']}" for load in _CSS_LOAD.finditer(sheet.read_text()))
    if not (html / "search.json").exists():
        yield "the search has no index"


def _file(page: Path, link: str, html: Path) -> Path:
    path = unquote(urlsplit(link).path)
    target = (html / path.lstrip("/") if path.startswith("/") else page.parent / path if path else page).resolve()
    return target / "index.html" if target.is_dir() else target


def pages_without_a_place(repository: Path, configuration: Path) -> Iterator[str]:
    """The pages of docs/ that the navigation does not list. Decisions have an index of their own."""
    navigation = configuration.read_text().partition("\nnav:")[2]
    listed = set(re.findall(r"[\w./-]+\.md\b", navigation))
    for page in sources.pages(repository):
        if page.parts[0] == "docs" and page.parts[1] != "decisions" and str(page) not in listed:
            yield f"{page} has no place in the navigation: add it to docs/site/mkdocs.yml"
