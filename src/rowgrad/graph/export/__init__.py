"""Pages as other things: a Python script, a drawing."""

from .dot import to_dot as to_dot
from .script import save_python as save_python
from .script import to_python as to_python
from .svg import to_svg as to_svg
