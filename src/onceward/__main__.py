"""Run ``python -m onceward`` as the script ``onceward``."""

import sys

from onceward.ops.cli import main

if __name__ == "__main__":
    sys.exit(main())
