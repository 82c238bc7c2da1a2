"""Pages as other things: a Python script, a drawing."""

from .picture import to_dot as to_dot
from .picture import to_svg as to_svg
from .script import save_python as save_python
from .script import to_python as to_python
