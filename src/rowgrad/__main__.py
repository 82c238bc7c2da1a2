"""`python -m rowgrad` is the command `rowgrad`."""

import sys

from .cli import main

sys.exit(main())
