"""Mistakes that users make, and the whole text they read: what is wrong, and what to do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoint_files import copy_of  # noqa: F401

import rowgrad as rg
from rowgrad.checkpoint import Checkpoint
