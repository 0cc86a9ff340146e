"""What the tests of one file share: the fixtures of the store, whose postboxes have no engines."""

from tests.core.conftest import Elsewhere, Open, box, clock, elsewhere, opened, shell

__all__ = ["Elsewhere", "Open", "box", "clock", "elsewhere", "opened", "shell"]
