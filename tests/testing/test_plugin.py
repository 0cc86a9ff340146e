"""The pytest plugin: fixtures for tests that ask, nothing for those that do not."""

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]
QUIETLY = ("-p", "no:cacheprovider", "-p", "no:unraisableexception")
USES_ALL = """
from onceward import Agent, Context

greeter = Agent("greeter")

@greeter.on("name")
def greet(name: str, ctx: Context) -> None:
    ctx.reply(f"hello {name}")

def test_postbox(postbox, manual_clock):
    postbox.send("tester", "later", delay=5)
    assert 0 == postbox.run_until_idle()
    manual_clock.advance(5)
    assert 0 < postbox.run_until_idle()

def test_harness(harness):
    box = harness(greeter)
    box.send("you", type="name", sender="me")
    box.deliver()
    assert ["hello you"] == box.sent("me")
"""
LAZY = """
import sys
import onceward.testing.plugin
print(sorted(name for name in sys.modules if name.startswith("onceward.testing")))
"""


def test_the_fixtures_work(pytester: pytest.Pytester) -> None:
    """A postbox, a clock and a factory of harnesses are there by name alone."""
    pytester.makepyfile(USES_ALL)

    pytester.runpytest_inprocess(*QUIETLY).assert_outcomes(passed=2)


def test_the_fixtures_are_explained(pytester: pytest.Pytester) -> None:
    """``pytest --fixtures`` says what each is for."""
    shown = pytester.runpytest_inprocess("--fixtures", *QUIETLY).stdout.str()

    assert [] == [
        name for name in ("manual_clock", "postbox", "harness") if f"\n{name} --" not in shown
    ]


def test_harnesses_are_closed_after_the_test(pytester: pytest.Pytester) -> None:
    """Files and connections of a test do not outlive it."""
    pytester.makepyfile(
        """
        folders = []

        def test_one(harness):
            folders.append(harness("one").postbox.file.path.parent)
            assert folders[0].exists()

        def test_two():
            assert not folders[0].exists()
        """
    )

    pytester.runpytest_inprocess(*QUIETLY).assert_outcomes(passed=2)


def test_nothing_of_the_aids_is_loaded_before_it_is_asked_for() -> None:
    """A run that uses no fixture of ours loads the plugin's own module and no other."""
    answer = subprocess.run(
        [sys.executable, "-c", LAZY], capture_output=True, check=True, text=True
    )

    assert "['onceward.testing', 'onceward.testing.plugin']" == answer.stdout.strip()
