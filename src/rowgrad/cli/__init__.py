"""The command `rowgrad`: check, run, export and import pages, open Studio, reshard tables, list and time operators."""

from .entry_point import main as main
