"""Open the postbox of each database of Django, once in a process, when it is first used."""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from onceward import Agent, Postbox
from onceward.errors import InvalidArgument
from onceward.file import file_checks, forks, open_files

ENGINE: Final = "onceward.integrations.django.backend"
DJANGO: Final = frozenset({"agent", "handlers", "timeout", "transaction_mode"})
"""Options that are not arguments of a postbox under this name."""
NO_AGENT: Final = (
    "DATABASES[{!r}]['OPTIONS'] names no agent: write {{'agent': 'shop'}}, the name under which"
    " the file sends and receives"
)
_boxes: Final = dict[Path, Postbox]()
"""The open ones, by the path of the file."""
_of_the_parent: Final = list[Postbox]()
"""Those that this process inherited by a fork: kept, as to collect them would touch them."""
_opening: Final = forks.new_rlock()


def postbox(using: str = "default") -> Postbox:
    """
    Return the open postbox of a database, by its alias; it is opened at its first use.

    It stays open until the process ends, and a forked child opens one of its own.

    Raises:
        ImproperlyConfigured: the database has another engine, or names no agent.
        StoreError: the file cannot be opened.

    """
    wrapper = connections[using]
    if getattr(wrapper, "settings_dict", {}).get("ENGINE") != ENGINE:
        raise ImproperlyConfigured(f"DATABASES[{using!r}] has no postbox: its ENGINE is {ENGINE!r}")
    return of_database(wrapper)


def of_database(wrapper: BaseDatabaseWrapper) -> Postbox:
    """Return the open postbox of a database."""
    path = file_checks.canonical(path_of(wrapper))
    found = _boxes.get(path)
    if found is None or found._closed:
        with _opening:
            found = _boxes.get(path)
            if found is None or found._closed:
                found = _boxes[path] = _opened(path, wrapper)
    return found


def adopt(box: Postbox) -> None:
    """Use the postbox of a worker for its database, unless another one is open here."""
    path = file_checks.canonical(box.file.path)
    with _opening:
        found = _boxes.get(path)
        if found is None or found._closed:
            _boxes[path] = box


def path_of(wrapper: BaseDatabaseWrapper) -> str:
    """Return the file of a database; raise ImproperlyConfigured if its settings name none."""
    name = wrapper.settings_dict["NAME"]
    if not name:
        raise ImproperlyConfigured(f"DATABASES[{wrapper.alias!r}] has no NAME: the path of a file")
    return str(os.fspath(name))


def agent_name(wrapper: BaseDatabaseWrapper) -> str:
    """Return the name of the agent whose file a database is."""
    given = options_of(wrapper).get("agent")
    if isinstance(given, Agent):
        return given.name
    if not isinstance(given, str) or not given:
        raise ImproperlyConfigured(NO_AGENT.format(wrapper.alias))
    return given


def options_of(wrapper: BaseDatabaseWrapper) -> Mapping[str, Any]:
    """Return the OPTIONS of a database."""
    found: Mapping[str, Any] = wrapper.settings_dict["OPTIONS"]
    return found


def close_postboxes() -> None:
    """
    Close the postboxes of all databases; the next use of one opens it again.

    Each waits for its running work, at most ``stop_timeout``.
    """
    with _opening:
        while _boxes:
            _boxes.popitem()[1].close()


def close_one(path: str) -> None:
    """Close the postbox of a file, if it is open here."""
    with _opening:
        found = _boxes.pop(file_checks.canonical(path), None)
        if found is not None:
            found.close()


def _opened(path: Path, wrapper: BaseDatabaseWrapper) -> Postbox:
    given = options_of(wrapper)
    options = {name: value for name, value in given.items() if name not in DJANGO}
    if "timeout" in given:
        options["busy_timeout"] = given["timeout"]
    options.setdefault("foreign_keys", True)
    try:
        return Postbox(path, agent=agent_name(wrapper), **options)
    except InvalidArgument as error:
        raise ImproperlyConfigured(f"DATABASES[{wrapper.alias!r}]['OPTIONS']: {error}") from error


def _leave_to_the_parent() -> None:
    """Let a forked child open the files again: it has closed what it inherited."""
    for path, box in _boxes.items():
        _of_the_parent.append(box)
        key = file_checks.file_key(path)
        if key is not None:
            open_files.inherited.discard(key)
    _boxes.clear()


atexit.register(close_postboxes)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)
