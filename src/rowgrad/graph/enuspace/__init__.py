"""Pages drawn in enuSpace-TensorFlow: its page `.svg` and task `.json` files, of both generations."""

from .drawing import Imported as Imported
from .drawing import Remark as Remark
from .reader import read_enuspace as read_enuspace
