"""Run ``python -m onceward.cli`` as the script ``onceward``."""

import sys

from onceward.cli import main

if __name__ == "__main__":
    sys.exit(main())
