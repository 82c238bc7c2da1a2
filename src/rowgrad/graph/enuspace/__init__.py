"""Pages drawn in enuSpace-TensorFlow: its page `.svg` and task `.json` files, of both generations."""

from .reading import read_enuspace as read_enuspace
from .report import Imported as Imported
from .report import Remark as Remark
