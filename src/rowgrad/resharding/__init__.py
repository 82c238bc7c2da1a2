"""Tables in parts, as files: from one number of parts and one rule to another, a few rows at a time."""

from .layout import Layout as Layout
from .layout import TensorLayout as TensorLayout
from .request import reshard as reshard
