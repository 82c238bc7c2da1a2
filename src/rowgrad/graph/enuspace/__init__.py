"""Import pages of enuSpace-TensorFlow: page `.svg` and task `.json` files of versions 3 and 4."""

from .drawing import Imported as Imported
from .drawing import Remark as Remark
from .reader import read_enuspace as read_enuspace
