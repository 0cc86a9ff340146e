"""No message stands before the one that it answers."""

import pytest

from onceward.message.record import after_causes


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["a", "b>a", "c>b"], "abc"),
        (["c>b", "b>a", "a"], "abc"),
        (["x", "c>b", "y", "b>a", "a", "z"], "xabcyz"),
        (["b>a", "a", "a", "b>a"], "abab"),
        (["b>unknown", "a"], "ba"),
        (["a>b", "b>a", "c>c"], "bac"),
        (["d>b,c", "c>a", "b>a", "a"], "abcd"),
        ([], ""),
    ],
)
def test_each_stands_after_what_caused_it(given: list[str], expected: str) -> None:
    """All else keeps its order; circles, doubles and unknown causes lose nothing."""

    def causes(item: str) -> list[str]:
        return [each for each in item.partition(">")[2].split(",") if each]

    told = after_causes(given, lambda item: item[0], causes)

    assert expected == "".join(item[0] for item in told)


def test_a_long_chain_is_told_from_its_end() -> None:
    """However many messages stand before the one that began it all."""
    chain = [*range(5000, -1, -1)]

    told = after_causes(chain, str, lambda item: [str(item - 1)])

    assert sorted(chain) == list(told)
