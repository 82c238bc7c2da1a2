"""`--switched-off`: every test is run again without what it tests, and must fail.

`@pytest.mark.feature("undo")` names a feature of the page, which `rowgrad studio --without undo` leaves out.
`@pytest.mark.broken("rowgrad.studio.project:Folder.save", "lambda *given: None")` names a part of the server and what
stands in its place. A test with several of either is run once for each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

FAILED_WITH = "failed without it"


class Off(NamedTuple):
    """What is taken away from a test."""

    features: tuple[str, ...] = ()
    broken: tuple[tuple[str, str], ...] = ()

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


def parametrize(metafunc: pytest.Metafunc) -> None:
    found = ways(metafunc.definition)
    if not found:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: no feature is named that it could be run without")
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
