"""``python -m tests.proof``: every harness that tries to break the promises, in one table."""

import sys

import cyclopts
from tests.proof.prove import prove

if __name__ == "__main__":
    app = cyclopts.App(name="python -m tests.proof", result_action="return_value")
    app.default(prove)
    sys.exit(app())
