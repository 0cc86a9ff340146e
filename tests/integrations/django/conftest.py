"""One site of Django in this process, and a new file for each test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import django
import pytest

from onceward import Postbox
from onceward.integrations.django import close_postboxes, postbox

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.integrations.django.settings"
django.setup()
del os.environ["DJANGO_SETTINGS_MODULE"]  # programs that other tests start have their own

from django.core.management import call_command  # noqa: E402 - after the setup
from django.db import connection, connections  # noqa: E402 - as above


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Postbox]:
    """The postbox of the default database: a new file, with the tables of the site."""
    settings = connection.settings_dict
    kept = dict(settings)
    settings.update(NAME=str(tmp_path / "app.db"), OPTIONS={"agent": "app", "start": False})
    call_command("migrate", run_syncdb=True, verbosity=0)
    yield postbox()
    connections.close_all()
    close_postboxes()
    settings.clear()
    settings.update(kept)
