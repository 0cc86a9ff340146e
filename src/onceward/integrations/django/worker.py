"""
The agent of a site, for a worker: its own handlers, and those of ``django.tasks``.

The variable that ``onceward work`` gets is the alias of the database: ``….worker:default``.
"""

from __future__ import annotations

from typing import Final

import django
from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections, connections, reset_queries
from django.utils.module_loading import import_string

from onceward import Agent, Postbox
from onceward.hooks import Attempt, Handling, Observer, observe
from onceward.integrations.django import postboxes

HANDLERS: Final = "handlers"
"""The option that names the agent whose handlers a worker runs."""
WRONG: Final = "DATABASES[{!r}]['OPTIONS']['handlers']={!r} must name an Agent({!r}): MODULE:NAME"
_agents: Final = dict[str, Agent]()


def agent_of(using: str) -> Agent:
    """
    Return the agent that handles the messages of a database, made once in a process.

    Raises:
        ImproperlyConfigured: the settings name another agent, or none.

    """
    if using not in _agents:
        if not apps.ready:
            django.setup()
        agent = _own_handlers(using)
        _add_tasks(agent, using)
        agent.at_open(_serve_site)
        _agents[using] = agent
    return _agents[using]


def __getattr__(name: str) -> Agent:
    if name.startswith("_"):
        raise AttributeError(name)
    return agent_of(name)


def _own_handlers(using: str) -> Agent:
    wrapper = connections[using]
    name, given = postboxes.agent_name(wrapper), postboxes.options_of(wrapper).get(HANDLERS)
    if given is None:
        return Agent(name)
    found = import_string(str(given).replace(":", "."))
    if not isinstance(found, Agent) or found.name != name:
        raise ImproperlyConfigured(WRONG.format(using, given, name))
    return found


def _add_tasks(agent: Agent, using: str) -> None:
    """Add the handlers of the task backends that keep their tasks in a database."""
    try:
        from onceward.integrations.django.tasks.backend import (  # noqa: PLC0415 - may be missing
            OncewardBackend,
        )
        from onceward.integrations.django.tasks.library import (  # noqa: PLC0415 - as above
            task_backends,
        )
    except ImportError:  # neither Django 6.0 nor django-tasks
        return
    for alias in task_backends.settings:
        backend = task_backends[alias]
        if isinstance(backend, OncewardBackend) and backend.database == using:
            backend.add_to(agent)


class _FreshConnections(Observer, Handling):
    """Begins and ends each attempt as Django begins and ends a request."""

    def handling(self, attempt: Attempt) -> Handling:
        del attempt
        reset_queries()
        close_old_connections()
        return self

    def ended(self, settlements: object, error: BaseException | None) -> None:
        del settlements, error
        close_old_connections()


def _serve_site(box: Postbox) -> None:
    """Let the ORM of a worker's process use its postbox, with connections as in a request."""
    postboxes.adopt(box)
    observe(box, _FreshConnections())
