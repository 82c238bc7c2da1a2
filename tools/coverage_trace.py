"""A plugin for pytest: lines go on being counted after a test that reached Python's limit of recursion.

At that limit the call of the tracer fails as any other would, and Python then drops a tracer for good.
"""

from __future__ import annotations

import sys

import pytest

_tracer = sys.gettrace()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if _tracer is not None and sys.gettrace() is None:
        print(f"\nno tracer since the test before {item.nodeid}", file=sys.stderr)
        sys.settrace(_tracer)
