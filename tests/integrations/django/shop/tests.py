"""Tests of a site as its authors write them: run by ``manage.py test`` in a process of its own."""

from __future__ import annotations

from threading import Thread

from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from tests.integrations.django.shop.models import Customer

from onceward.integrations.django import postbox, send


class InOneTransaction(TestCase):
    """Each test is rolled back."""

    def test_first(self) -> None:
        """Rows and messages of a test are there during it."""
        self._check()

    def test_second(self) -> None:
        """Those of another test are not."""
        self._check()

    def _check(self) -> None:
        Customer.objects.create(name="ada")
        with transaction.atomic():
            send("app", 1, type="welcome")
        [(count,)] = _ask("SELECT count(*) FROM onceward_outbox")
        assert (1, 1) == (Customer.objects.count(), count)


class WithCommits(TransactionTestCase):
    """Each test commits, and the tables are emptied after it."""

    def test_threads_see_what_is_committed(self) -> None:
        """Another thread connects to the same test database."""
        Customer.objects.create(name="bob")
        found: list[int] = []

        def count() -> None:
            found.append(Customer.objects.count())
            connection.close()

        thread = Thread(target=count)
        thread.start()
        thread.join()
        assert [1] == found

    def test_messages_are_handled_by_the_test(self) -> None:
        """The postbox of a test database runs no engine by itself."""
        send("app", 1, type="welcome")
        box = postbox()
        box.run_until_idle()
        message = box.receive()
        assert message is not None
        message.ack()
        assert message.body == 1


def _ask(sql: str) -> list[tuple[int]]:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())
