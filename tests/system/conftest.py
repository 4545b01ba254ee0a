"""Sites for tests, the output of their processes when a test fails, and measured figures."""

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

from .harness import Site

_SITES = pytest.StashKey[list[Site]]()
_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture
def new_site(request: pytest.FixtureRequest) -> Iterator[Callable[..., Site]]:
    """Make sites that end with the test, also if the test fails."""
    yield from _sites(request)


@pytest.fixture(scope="module")
def new_shared_site(request: pytest.FixtureRequest) -> Iterator[Callable[..., Site]]:
    """Make sites that all tests of a module share."""
    yield from _sites(request)


def _sites(request: pytest.FixtureRequest) -> Iterator[Callable[..., Site]]:
    sites: list[Site] = request.node.stash.setdefault(_SITES, [])

    def make(*arguments: Any, **settings: Any) -> Site:
        site = Site(*arguments, **settings)
        sites.append(site)
        return site

    yield make
    for site in sites:
        site.close()


@pytest.fixture
def site(new_site: Callable[..., Site]) -> Site:
    return new_site()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Add a measured figure to the summary. Figures are printed and never decide a test."""
    figures: list[str] = request.config.stash.setdefault(_FIGURES, [])
    return lambda text: figures.append(f"{request.node.name}: {text}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.when == "call":
        for site in (site for node in item.listchain() for site in node.stash.get(_SITES, [])):
            report.sections += site.transcripts()
    return report


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    figures = config.stash.get(_FIGURES, [])
    if figures:
        terminalreporter.section("figures")
        for text in figures:
            terminalreporter.write_line(text)
