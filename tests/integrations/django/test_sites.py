"""Commands of Django, test databases and forked servers, each in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.children import PYTHON, Child
from tests.waiting import until

ROOT = Path(__file__).parents[3]
SITE = {"DJANGO_SETTINGS_MODULE": "tests.integrations.django.settings", "PYTHONPATH": str(ROOT)}


def manage(folder: Path, *words: str) -> tuple[str, str]:
    """Run a command of the site in a folder, which has its file; return what it printed."""
    return _ended(folder, "-m", "django", *words)


def program(folder: Path, text: str) -> str:
    """Run a program of the site; return what it printed."""
    return _ended(folder, "-c", f"import django; django.setup()\n{text}")[0].strip()


def _ended(folder: Path, *words: str) -> tuple[str, str]:
    command = [*PYTHON, "-W", "error", *words]
    with Child(command, "stdout", "stderr", cwd=folder, env={**os.environ, **SITE}) as child:
        out, err = child.ended()
    assert 0 == child.returncode, err
    return out, err


@pytest.mark.parametrize("words", [[], ["--parallel", "2"]], ids=["alone", "in parallel"])
def test_tests_of_a_site_have_a_database_of_their_own(
    tmp_path: Path, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``manage.py test`` isolates tests, also in several processes, and leaves no file behind."""
    temporary = tmp_path / "temporary"
    site = tmp_path / "site"
    temporary.mkdir()
    site.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))

    done = manage(site, "test", "tests.integrations.django.shop.tests", *words)

    assert "Ran 4 tests" in done[1]
    assert ([], []) == (list(site.iterdir()), list(temporary.glob("onceward-test-*")))


def test_the_commands_of_django_leave_onceward_alone(tmp_path: Path) -> None:
    """Migrations, inspection and emptying are about the tables of the application."""
    manage(tmp_path, "migrate", "--run-syncdb")
    program(tmp_path, SENDING)
    made, _ = manage(tmp_path, "makemigrations", "--check", "--dry-run")
    seen, _ = manage(tmp_path, "inspectdb", "--include-views")
    manage(tmp_path, "flush", "--no-input")

    assert "No changes detected" == made.strip()
    assert ("class ShopCustomer" in seen, "onceward_" in seen) == (True, False)
    assert "0 1" == program(tmp_path, COUNTING)


SENDING = """
from django.db import transaction
from onceward.integrations.django import send
from tests.integrations.django.shop.models import Customer
with transaction.atomic():
    Customer.objects.create(name="ada")
    send("app", 1, type="welcome")
"""
COUNTING = """
from onceward.integrations.django import postbox
from tests.integrations.django.shop.models import Customer
print(Customer.objects.count(), postbox().file.stats()["enqueued"])
"""
FORKING = """
import json
import os
import signal
from django.db import connection, transaction
from onceward.integrations.django import postbox, send
from tests.integrations.django.shop.models import Customer

Customer.objects.create(name="parent")
before = postbox()
for number in range(2):
    pid = os.fork()
    if not pid:
        with transaction.atomic():
            Customer.objects.create(name=f"child {number}")
            send("app", number, type="welcome")
        assert postbox() is not before
        os._exit(0)
    assert 0 == os.waitpid(pid, 0)[1]
Customer.objects.create(name="after")
print(*Customer.objects.order_by("id").values_list("name", flat=True), sep=",")
assert postbox() is before
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a system without fork")
def test_forked_servers_open_the_file_anew(tmp_path: Path) -> None:
    """A server that has asked its database before it forks, as with --preload, goes on working."""
    manage(tmp_path, "migrate", "--run-syncdb")

    said = program(tmp_path, FORKING)

    assert "parent,child 0,child 1,after" == said
    assert "4 2" == program(tmp_path, COUNTING)


ENQUEUING = """
from django.db import transaction
from tests.integrations.django.shop.models import Customer
from tests.integrations.django.shop.tasks import count
for number in range(8):
    try:
        with transaction.atomic():
            Customer.objects.create(name=f"by the request {number}")
            print(count.enqueue(str(number)).id)
            if number % 4 == 1:
                raise RuntimeError
    except RuntimeError:
        pass
"""
DONE = """
from tests.integrations.django.shop.models import Customer
from tests.integrations.django.shop.tasks import count
found = count.get_result("{}")
print(Customer.objects.count(), found.status.value, found.attempts)
"""


def _customers(folder: Path) -> int:
    """Return how many customers are committed."""
    with closing(sqlite3.connect(folder / "app.db")) as con:
        [(count,)] = con.execute("SELECT count(*) FROM shop_customer")
    return int(count)


def test_a_killed_worker_leaves_each_task_done_once(tmp_path: Path) -> None:
    """Rows of a task that dies in the middle are undone; the next worker runs it again."""
    manage(tmp_path, "migrate", "--run-syncdb")
    ids = program(tmp_path, ENQUEUING).splitlines()
    work = [*PYTHON, "-m", "django", "onceward", "work", "--workers=1"]
    env = {**os.environ, **SITE}

    with Child(work, "stdout", "stderr", cwd=tmp_path, env=env) as first:
        first.ended()
    with Child(work, "stdout", "stderr", cwd=tmp_path, env=env) as second:
        until(lambda: _customers(tmp_path) == 12)
        second.stop()

    calls = (tmp_path / "calls.log").read_text().split()
    assert (set("023467"), 2) == (set(calls), calls.count("3"))
    assert (-signal.SIGKILL, 143) == (first.returncode, second.returncode)
    assert "12 SUCCESSFUL 2" == program(tmp_path, DONE.format(ids[3]))


CALL = "call('onceward', 'why')"


def test_the_command_works_on_the_file_of_the_database(tmp_path: Path) -> None:
    """Each verb of ``onceward`` finds the agent's file; ``--database`` names another one."""
    manage(tmp_path, "migrate", "--run-syncdb")
    program(tmp_path, SENDING)

    why, _ = manage(tmp_path, "onceward", "why")
    told, _ = manage(tmp_path, "onceward", "--database=default", "stats", "--json")

    called = program(tmp_path, "from django.core.management import call_command as call; " + CALL)
    helped, _ = manage(tmp_path, "help", "onceward")

    assert ["of app", "of app"] == [*re.findall("of app", why), *re.findall("of app", called)]
    assert "--database" in helped
    assert 1 == json.loads(told)["enqueued"]


def test_another_engine_has_no_postbox(tmp_path: Path) -> None:
    """The error names the engine that the database must have."""
    text = (
        "from django.db import connections as c; from onceward.integrations.django import postbox;"
        "c['default'].settings_dict['ENGINE'] = 'django.db.backends.sqlite3'\n"
        "try: postbox()\nexcept Exception as e: print(type(e).__name__, e)"
    )

    assert "ImproperlyConfigured" in program(tmp_path, text)
