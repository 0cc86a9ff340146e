"""A library that is missing: which extra brings it."""

import pytest

from onceward.errors import InvalidArgument, MissingExtra
from onceward.message.extras import needs


def test_a_missing_library_names_its_extra() -> None:
    """The error says what needs it and what to type; it is an error of imports, too."""
    with pytest.raises(MissingExtra) as caught, needs("nats", "a url of nats:"):
        raise ModuleNotFoundError(name="nats.aio")

    assert (
        "a url of nats: needs nats, which is not installed: pip install 'onceward[nats]'"
    ) == str(caught.value)
    assert "nats" == caught.value.name
    assert isinstance(caught.value, ModuleNotFoundError | InvalidArgument)


def test_a_module_of_ours_that_is_missing_is_no_extra() -> None:
    """It is our own mistake."""
    with pytest.raises(ModuleNotFoundError) as caught, needs("nats", "a url of nats:"):
        raise ModuleNotFoundError(name="onceward.nothing")

    assert not isinstance(caught.value, MissingExtra)


def test_the_inner_extra_counts() -> None:
    """What an add-on needs of another is told as it is."""
    http = pytest.raises(MissingExtra, match=r"onceward\[http\]")
    with http, needs("mcp", "mcp"), needs("http", "onceward.http"):
        raise ModuleNotFoundError(name="uvicorn")
