"""Read and write pages and projects as JSON files; docs/reference/pages.md describes the format.

Modules here import each other by full name. `from . import fields` needs the package itself, so that two threads
importing it at once could get a half-initialized module.
"""

from .files import write_atomically as write_atomically
from .store import browser_tree as browser_tree
from .store import dumps as dumps
from .store import load as load
from .store import loads as loads
from .store import read_tree as read_tree
from .store import save as save
from .store import save_tree as save_tree
