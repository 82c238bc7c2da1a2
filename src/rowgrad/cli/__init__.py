"""The command `rowgrad`: what is here, what it does and how fast; pages judged, run, written out and brought over."""

from .entry_point import main as main
