"""`--switched-off`: run every test again with the thing it tests disabled, and require that it fails.

`@pytest.mark.feature("undo")` names a feature of the front end (`FEATURE_NAMES` in web/switches.ts). The shipped build
has no switches: `make test-browser-off` builds one with switches, and each window disables one feature.
`@pytest.mark.broken("rowgrad.studio.project:Folder.save", "lambda *given: None")` names a part of the server and its
replacement. A test with several of either runs once for each.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

FAILED_WITH = "failed without it"
FRONT_END = Path(__file__).parents[3] / "build" / "web-switches"  # written by `npm run build:switches`


class Mutation(NamedTuple):
    """What is disabled while a test runs; nothing by default."""

    features: tuple[str, ...] = ()
    broken: tuple[tuple[str, str], ...] = ()

    @property
    def front_end(self) -> Path | None:
        """The front end build with switches, if one is needed."""
        return FRONT_END if self.features else None

    @property
    def script(self) -> str:
        """The script that a window runs first, to switch off these features."""
        if not self.features:
            return ""
        off = json.dumps(self.features)
        return f"globalThis.rowgradFeatures = new Proxy({{}}, {{ get: (_, name) => !{off}.includes(name) }})"

    def __str__(self) -> str:
        return ",".join(
            [*(f"without-{name}" for name in self.features), *(f"broken-{place}" for place, _ in self.broken)]
        )


def requested(config: pytest.Config) -> bool:
    return bool(config.getoption("--switched-off", default=False))


def mutations_of(definition: Any) -> list[Mutation]:
    """Return one mutation for each feature and server part in a test's markers."""
    features = [Mutation(features=(name,)) for mark in definition.iter_markers("feature") for name in mark.args]
    return features + [Mutation(broken=(tuple(mark.args),)) for mark in definition.iter_markers("broken")]


@cache
def front_end_script() -> str:
    script = FRONT_END / "studio.js"
    if not script.is_file():
        raise pytest.UsageError(f"{script} is missing: `make test-browser-off` builds it")
    return script.read_text(encoding="utf-8")


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Run the test once for each of its mutations."""
    mutations = mutations_of(metafunc.definition)
    if not mutations:
        raise pytest.UsageError(f"{metafunc.definition.nodeid}: mark it with a feature or a broken part of the server")
    for name in (name for mutation in mutations for name in mutation.features):
        if f"rowgradFeatures.{name}" not in front_end_script():
            raise pytest.UsageError(f"{metafunc.definition.nodeid}: the front end has no switch {name!r}")
    metafunc.parametrize("mutation", mutations, ids=str, indirect=True)


def must_fail(item: pytest.Function, mutation: Mutation) -> Any:
    """Run a test and require a failed assertion or a timeout; other exceptions propagate."""
    from playwright.sync_api import Error

    try:
        yield
    except (AssertionError, Error, pytest.fail.Exception) as error:
        item.user_properties.append((FAILED_WITH, reason(str(error))))
        return True
    pytest.fail(f"passes without its feature: {mutation}", pytrace=False)


def reason(text: str) -> str:
    """Return the first line of an error message, and what Playwright waited for."""
    lines = [line.strip(" -") for line in text.splitlines() if line.strip()] or ["assert"]
    waited = [line for line in lines[1:] if line.startswith("waiting for")][:1]
    return " ".join([lines[0], *waited])[:200]


def summary(terminal: Any) -> None:
    """Print why each test failed, so that a person can check that the reason is right."""
    terminal.section("why tests failed without what they test")
    for report in terminal.stats.get("passed", []):
        for name, text in report.user_properties:
            if name == FAILED_WITH:
                terminal.write_line(f"{report.nodeid.rpartition('/')[2]}: {text}")
