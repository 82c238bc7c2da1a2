"""Export pages as Python scripts, SVG pictures and Graphviz graphs."""

from .picture import to_dot as to_dot
from .picture import to_svg as to_svg
from .plain_script import to_plain_python as to_plain_python
from .script import save_python as save_python
from .script import to_python as to_python
