"""`--switched-off`: every test is run again without what it tests, and must fail.

`@pytest.mark.feature("undo")` names a feature of the page (`FEATURE_NAMES` in web/switches.ts). The shipped page has no
switches: `make test-browser-off` builds one that has, and each window says which feature is off.
`@pytest.mark.broken("rowgrad.studio.project:Folder.save", "lambda *given: None")` names a part of the server and what
stands in its place. A test with several of either is run once for each.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

FAILED_WITH = "failed without it"
PAGE = Path(__file__).parents[3] / "build" / "web-switches"  # of `npm run build:switches`


class Off(NamedTuple):
    """What is taken away from a test."""

    features: tuple[str, ...] = ()
    broken: tuple[tuple[str, str], ...] = ()

    @property
    def page(self) -> Path | None:
        """The build of the page that has switches, where one of them is needed."""
        return PAGE if self.features else None

    @property
    def script(self) -> str:
        """What a window runs before such a page: every feature but these is on."""
        if not self.features:
            return ""
        off = json.dumps(self.features)
        return f"globalThis.rowgradFeatures = new Proxy({{}}, {{ get: (_, name) => !{off}.includes(name) }})"

    def __str__(self) -> str:
        return ",".join(
            [*(f"without-{name}" for name in self.features), *(f"broken-{place}" for place, _ in self.broken)]
        )


def asked(config: pytest.Config) -> bool:
    return bool(config.getoption("--switched-off", default=False))


def ways(definition: Any) -> list[Off]:
    """Each thing a test says it is about, alone."""
    named = [Off(features=(name,)) for mark in definition.iter_markers("feature") for name in mark.args]
    return named + [Off(broken=(tuple(mark.args),)) for mark in definition.iter_markers("broken")]


@cache
def built_page() -> str:
    script = PAGE / "studio.js"
    if not script.is_file():
        raise pytest.UsageError(f"{script} is missing: `make test-browser-off` builds it")
    return script.read_text(encoding="utf-8")


def parametrize(metafunc: pytest.Metafunc) -> None:
    found = ways(metafunc.definition)
    if not found:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: no feature is named that it could be run without")
    for name in (name for off in found for name in off.features):
        if f"rowgradFeatures.{name}" not in built_page():
            raise pytest.UsageError(f"{metafunc.definition.nodeid}: the page has no switch {name!r}")
    metafunc.parametrize("off", found, ids=str, indirect=True)


def must_fail(item: pytest.Function, off: Off) -> Any:
    """The way a test is called here: a failed claim or a wait in vain is right, anything else is not."""
    from playwright.sync_api import Error

    try:
        yield
    except (AssertionError, Error, pytest.fail.Exception) as error:
        item.user_properties.append((FAILED_WITH, reason(str(error))))
        return True
    pytest.fail(f"passes without its feature: {off}", pytrace=False)


def reason(text: str) -> str:
    """The first line, and what was waited for."""
    lines = [line.strip(" -") for line in text.splitlines() if line.strip()] or ["assert"]
    waited = [line for line in lines[1:] if line.startswith("waiting for")][:1]
    return " ".join([lines[0], *waited])[:200]


def summary(terminal: Any) -> None:
    """Why each test failed, for a person to judge whether it was for the right reason."""
    terminal.section("why tests failed without what they test")
    for report in terminal.stats.get("passed", []):
        for name, text in report.user_properties:
            if name == FAILED_WITH:
                terminal.write_line(f"{report.nodeid.rpartition('/')[2]}: {text}")
