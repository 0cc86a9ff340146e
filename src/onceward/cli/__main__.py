"""``python -m onceward.cli`` is the script ``onceward``."""

import sys

from onceward.cli import main

if __name__ == "__main__":
    sys.exit(main())
