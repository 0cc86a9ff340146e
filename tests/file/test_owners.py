"""Which owners of leases have surely ended."""

import sys

import pytest
from tests.children import PYTHON, Child
from tests.waiting import until

from onceward.file.file_checks import is_dead, process_id


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell it")
def test_a_killed_process_is_dead_before_its_parent_asks() -> None:
    """A supervisor that does not collect exit codes delays no other worker by a lease."""
    with Child([*PYTHON, "-c", "input()"], "stdin") as child:
        owner = f"{process_id(child.pid)}/token"
        lives = is_dead(owner)
        child.kill()
        until(lambda: is_dead(owner))

    assert not lives
