"""Tests with other packages, in an environment of their own: `make test-ecosystem`."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Ignore the warnings of other packages, but not those that rowgrad causes."""
    config.addinivalue_line("filterwarnings", "ignore")
    config.addinivalue_line("filterwarnings", "error:::rowgrad")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect these files only if they are named: other environments lack the packages, which must not go unnoticed."""
    named = (Path(config.invocation_params.dir, argument.split("::")[0]).resolve() for argument in config.args)
    return None if any(path.is_relative_to(FOLDER) for path in named) else True
