"""A pytest plugin that loads `rowgrad._core` from ROWGRAD_COUNTING_CORE, an extension that counts its branches."""

from __future__ import annotations

import importlib.util
import os
import sys

_spec = importlib.util.spec_from_file_location("rowgrad._core", os.environ["ROWGRAD_COUNTING_CORE"])
assert _spec is not None
assert _spec.loader is not None
_core = importlib.util.module_from_spec(_spec)
sys.modules["rowgrad._core"] = _core
_spec.loader.exec_module(_core)
