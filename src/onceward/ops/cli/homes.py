"""``onceward homes``: connect this home with homes on other machines, by one key each."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

from onceward.errors import OncewardError
from onceward.homes import Homes
from onceward.message.names import POLL
from onceward.ops.cli.command import emit, picked
from onceward.ops.cli.exit_codes import DONE
from onceward.ops.cli.listener_mark import listeners
from onceward.ops.cli.options import said
from onceward.ops.cli.output import note
from onceward.ops.cli.target import ANSWER, Answer, home_folder

Name = Annotated[str, said("The home's name here, as in onceward homes ls.")]
Url = Annotated[str, said("The other home's URL, or poll: if it cannot be called.")]
Home = Annotated[Path | None, said("The home folder; default ONCEWARD_HOME, else here.")]
COLUMNS: Final = ("name", "url", "agents", "told_at", "fingerprint")
OF_AGENT: Final = ("name", "home", "accepts", "description")


def show(*, home: Home = None, answer: Answer = ANSWER) -> int:
    """
    Print the fingerprint of this home, and where it listens; create its key if it has none.

    The key is HOME/identity/home.key, mode 0600. Another home needs the fingerprint, which is no
    secret, but must reach its operator unchanged.

    Columns: fingerprint, urls.

    Example: onceward homes show --home /srv/bob
    """
    folder = home_folder(home)
    found = Homes(folder).show()
    urls = [each["url"] for each in listeners(folder)]
    row = {"fingerprint": found.fingerprint, "urls": urls, "created_at": found.created_at}
    return emit(row, ("fingerprint", "urls"), answer)


def add(
    url: Url,
    /,
    *,
    fingerprint: Annotated[str, said("What onceward homes show prints there.")],
    name: Annotated[str, said("Its name here; default its host and port.")] = "",
    home: Home = None,
    answer: Answer = ANSWER,
) -> int:
    """
    Exchange messages with another home, after comparing its key with the fingerprint.

    Do the same at the other home. Then all agents of both reach each other by their names, also
    those that are created later. A home that cannot be called is added as poll: with a name.

    Example: onceward homes add https://bob.example:8443 --fingerprint SHA256:...

    Example: onceward homes add poll: --name laptop --fingerprint SHA256:...
    """
    homes = Homes(home_folder(home))
    found = homes.add(url, fingerprint, name)
    if found.url != POLL:
        try:
            homes.ping(found.name)
        except OncewardError as error:
            note(f"{found.name} was added, but does not take our requests yet: {error}")
    row = next(each for each in homes.list() if each.name == found.name)
    return emit(picked(row, COLUMNS), COLUMNS, answer)


def ls(*, home: Home = None, answer: Answer = ANSWER) -> int:
    """
    List the other homes: how many agents each serves, and when it told them last.

    Columns: name, url, agents, told_at, fingerprint.

    Example: onceward homes ls
    """
    rows = [asdict(each) for each in Homes(home_folder(home)).list()]
    return emit(rows, COLUMNS, answer)


def agents(*, home: Home = None, answer: Answer = ANSWER) -> int:
    """
    List the agents of the other homes, as these have told them.

    Columns: name, home, accepts, description.

    Example: onceward homes agents
    """
    rows = [
        picked(each, OF_AGENT) | {"accepts": [*each.accepts]}
        for each in Homes(home_folder(home)).agents()
    ]
    return emit(rows, OF_AGENT, answer)


def ping(name: Name, /, *, home: Home = None, answer: Answer = ANSWER) -> int:
    """
    Exchange lists of agents with a home now, and print how far its clock is ahead.

    Without an answer the error says what is wrong: url, certificate, key or clock.

    Columns: name, url, agents, took_ms, clock_ahead_ms.

    Example: onceward homes ping bob.example-8443
    """
    found = Homes(home_folder(home)).ping(name)
    row = {
        "name": found.name,
        "url": found.url,
        "agents": found.agents,
        "took_ms": round(1000 * found.took),
        "clock_ahead_ms": found.clock_ahead,
    }
    return emit(row, tuple(row), answer)


def remove(name: Name, /, *, home: Home = None, answer: Answer = ANSWER) -> int:
    """
    Remove a home: its next request is refused, and messages for its agents wait.

    Example: onceward homes remove bob.example-8443
    """
    Homes(home_folder(home)).remove(name)
    return emit({"name": name, "removed": True}, ("name",), answer) if answer.json else DONE


def rotate(*, home: Home = None, answer: Answer = ANSWER) -> int:
    """
    Replace the key of this home by a new one, which the old one signs.

    Other homes follow with the next exchange, so no message waits; they list the new fingerprint.

    Example: onceward homes rotate
    """
    found = Homes(home_folder(home)).rotate()
    return emit(asdict(found), ("fingerprint",), answer)
