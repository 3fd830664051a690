"""``python -m rlplast``: the command line."""

import sys

from rlplast.cli.main import main

sys.exit(main())
