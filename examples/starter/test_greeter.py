"""Test the greeter without threads, network or waiting."""

from greeter import Greeting, Hello, greeter

from onceward.testing import Harness


def test_a_greeting_is_sent_and_counted() -> None:
    """Every message gets a greeting and is counted under its name."""
    with Harness(greeter) as harness:
        for name in ("Ada", "Ada", "Bo"):
            harness.send(Hello(name=name), sender="caller", reply_to="caller")
        harness.deliver()

        texts = [each.text for each in harness.sent("caller", Greeting)]
        counts = harness.sql("SELECT name, times FROM greeted ORDER BY name")

    assert texts == ["Hello, Ada!", "Hello, Ada!", "Hello, Bo!"]
    assert counts == [("Ada", 2), ("Bo", 1)]


def test_a_crash_counts_nothing_twice() -> None:
    """A process that dies before the commit changes nothing; the message is handled again."""
    with Harness(greeter) as harness:
        harness.send(Hello(name="Ada"), sender="caller")
        with harness.crash_at("before-commit"):
            harness.deliver()
        harness.advance(60)  # the lease of the dead process expires
        harness.deliver()

        assert harness.sql("SELECT name, times FROM greeted") == [("Ada", 1)]
