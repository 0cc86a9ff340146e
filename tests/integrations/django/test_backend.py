"""Django's ORM on an agent's file works as on SQLite, and shares transactions with messages."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from decimal import Decimal
from threading import Thread
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import (
    DatabaseError,
    IntegrityError,
    OperationalError,
    ProgrammingError,
    connection,
    models,
    transaction,
)
from django.db.models import Avg, Count, F, StdDev, Sum
from django.db.models.functions import ExtractYear, Now, TruncMonth
from django.db.transaction import TransactionManagementError
from tests.integrations.django.shop.models import Customer, Invoice, Tag

from onceward import Agent, Context, Postbox
from onceward.errors import SendError
from onceward.integrations.django import postbox, send

CREATE: Any = getattr(transaction, "savepoint_create", None) or transaction.savepoint
"""Its name changed in Django 6.1."""
UTC = dt.UTC


def sent(box: Postbox) -> list[Any]:
    """Return the bodies of the messages in the outbox."""
    return [row[0] for row in box.query("SELECT body FROM onceward_outbox ORDER BY seq")]


def names() -> list[str]:
    """Return the names of the customers."""
    return list(Customer.objects.order_by("name").values_list("name", flat=True))


def in_thread(work: Callable[[], Any]) -> Any:
    """Run *work* on another thread, whose connection is closed; return its result."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        finally:
            connection.close()

    thread = Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


class Stop(Exception):
    """Ends a block."""


# -- values -----------------------------------------------------------------------------------


def test_values_come_back_as_they_were_given(box: Postbox) -> None:
    """Each kind of field reads what it has written, also as a filter."""
    given = {
        "share": Decimal("12.50"),
        "paid": True,
        "due": dt.date(2026, 1, 31),
        "made_at": dt.datetime(2026, 1, 31, 12, 30, 1, 5, tzinfo=UTC),
        "at": dt.time(23, 59),
        "took": dt.timedelta(days=1, microseconds=3),
        "notes": {"a": [1, None, "ü"]},
        "number": uuid.UUID(int=7),
        "scan": b"\x00\xff",
    }
    Invoice.objects.create(**given)

    read = Invoice.objects.get(**{name: value for name, value in given.items() if name != "notes"})

    assert given == {name: getattr(read, name) for name in given}


def test_raw_statements_convert_as_with_sqlite3(box: Postbox) -> None:
    """A cursor takes dates and decimals, and returns columns by their declared types."""
    Invoice.objects.create(due=dt.date(2026, 1, 31), paid=True, cents=50)

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT due, paid, '%%' FROM shop_invoice WHERE due = %s AND cents < %s",
            [dt.date(2026, 1, 31), Decimal("50.5")],
        )
        first = cursor.fetchall()
        cursor.execute("SELECT cents FROM shop_invoice WHERE paid = %(paid)s", {"paid": True})

        assert ([(dt.date(2026, 1, 31), True, "%")], [(50,)]) == (first, cursor.fetchall())
        assert ["cents"] == [column[0] for column in cursor.description]


def test_functions_of_django_work_on_every_connection(box: Postbox) -> None:
    """Dates are cut, texts matched and numbers aggregated, inside of transactions and outside."""
    at = dt.datetime(2026, 3, 5, 6, tzinfo=UTC)
    Invoice.objects.create(made_at=at, cents=1)
    Invoice.objects.create(made_at=at, cents=3)
    asked = Invoice.objects.annotate(year=ExtractYear("made_at"), month=TruncMonth("made_at"))

    def ask() -> tuple[Any, ...]:
        found = asked.filter(year=2026, cents__regex="^[13]$").values_list("month", flat=True)
        return (
            set(found),
            Invoice.objects.aggregate(Sum("cents"), Avg("cents"), StdDev("cents")),
            Invoice.objects.filter(made_at__lt=Now()).aggregate(n=Count("*"))["n"],
        )

    want = (
        {dt.datetime(2026, 3, 1, tzinfo=UTC)},
        {"cents__sum": 4, "cents__avg": 2.0, "cents__stddev": 1.0},
        2,
    )
    outside = ask()
    with transaction.atomic():
        inside = ask()
    assert (want, want, want) == (outside, inside, in_thread(ask))


def test_a_program_adds_functions_of_its_own(box: Postbox) -> None:
    """What is added to one connection, as to one of sqlite3, is known to all."""
    connection.ensure_connection()
    connection.connection.create_function("twice", 1, lambda value: value * 2, deterministic=True)
    connection.connection.create_collation("backwards", lambda a, b: (a < b) - (a > b))
    Customer.objects.create(name="a")
    Customer.objects.create(name="b")

    def ask() -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT name, twice(4) FROM shop_customer ORDER BY 1 COLLATE backwards")
            return list(cursor.fetchall())

    assert [("b", 8), ("a", 8)] == ask() == in_thread(ask)


def test_relations_and_expressions_work(box: Postbox) -> None:
    """Many-to-many rows, joins, updates by expressions and bulk inserts do as on SQLite."""
    ada = Customer.objects.create(name="ada")
    made = Invoice.objects.bulk_create([Invoice(customer=ada, cents=n) for n in range(50)])
    made[0].tags.add(Tag.objects.create(word="new"))
    changed = Invoice.objects.filter(customer__name="ada").update(cents=F("cents") + 1)

    assert (50, 50, 1) == (
        changed,
        Invoice.objects.order_by("-cents")[0].cents,
        Invoice.objects.filter(tags__word="new").count(),
    )
    assert (52, {"shop.Invoice_tags": 1, "shop.Invoice": 50, "shop.Customer": 1}) == ada.delete()


# -- transactions -----------------------------------------------------------------------------


def test_messages_are_committed_with_the_rows(box: Postbox) -> None:
    """A block that fails keeps neither its rows nor its messages."""
    for name in ("ada", "bob", "cyd"):
        try:
            with transaction.atomic():
                Customer.objects.create(name=name)
                send("app", name, type="welcome")
                if name == "bob":
                    raise Stop
        except Stop:
            pass

    assert (["ada", "cyd"], ["ada", "cyd"]) == (names(), sent(box))


def test_a_message_of_the_postbox_joins_the_block_of_its_thread(box: Postbox) -> None:
    """``postbox().send`` in ``atomic`` is part of its transaction."""
    with pytest.raises(Stop), transaction.atomic():
        postbox().send("app", 1, type="welcome")
        raise Stop

    assert [] == sent(box)


def test_an_inner_block_is_undone_alone(box: Postbox) -> None:
    """A savepoint takes its rows and messages with it; the rest is committed."""
    with transaction.atomic():
        Customer.objects.create(name="ada")
        send("app", "ada", type="welcome")
        with pytest.raises(Stop), transaction.atomic():
            Customer.objects.create(name="bob")
            send("app", "bob", type="welcome")
            raise Stop
        with transaction.atomic():
            Customer.objects.create(name="cyd")
            send("app", "cyd", type="welcome")

    assert (["ada", "cyd"], ["ada", "cyd"]) == (names(), sent(box))


def test_a_savepoint_can_be_rolled_back_to_repeatedly(box: Postbox) -> None:
    """As in SQL, a savepoint stays after a rollback to it."""
    with transaction.atomic():
        mark = CREATE()
        for name in ("ada", "bob"):
            Customer.objects.create(name=name)
            transaction.savepoint_rollback(mark)
        Customer.objects.create(name="cyd")
        transaction.savepoint_commit(mark)

    assert ["cyd"] == names()


def test_an_error_of_a_constraint_breaks_only_its_block(box: Postbox) -> None:
    """Outside of a block the next statement works; inside, the outer block is marked."""
    Customer.objects.create(name="ada")
    with pytest.raises(IntegrityError):
        Customer.objects.create(name="ada")
    with transaction.atomic():
        with pytest.raises(IntegrityError), transaction.atomic():
            Customer.objects.create(name="ada")
        Customer.objects.create(name="bob")
    with transaction.atomic():
        with pytest.raises(IntegrityError), transaction.atomic(savepoint=False):
            Customer.objects.create(name="ada")
        with pytest.raises(TransactionManagementError):
            Customer.objects.create(name="cyd")
        transaction.set_rollback(True)

    assert ["ada", "bob"] == names()


def test_a_block_reads_what_it_wrote_and_others_do_not(box: Postbox) -> None:
    """Rows of an open block are seen on its thread only; after its end by all."""
    with transaction.atomic():
        Customer.objects.create(name="ada")
        inside = names(), in_thread(names)

    assert ((["ada"], []), ["ada"], ["ada"]) == (inside, names(), in_thread(names))


def test_without_autocommit_the_first_statement_that_writes_begins(box: Postbox) -> None:
    """``commit`` and ``rollback`` end the transaction that statements have begun."""
    transaction.set_autocommit(False)
    try:
        Customer.objects.create(name="ada")
        unseen = in_thread(names)
        transaction.commit()
        Customer.objects.create(name="bob")
        send("app", "bob", type="welcome")
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)

    assert ([], ["ada"], []) == (unseen, names(), sent(box))


def test_a_deferred_block_begins_with_its_first_write(box: Postbox) -> None:
    """In the mode DEFERRED a block that only reads delays no writer; its messages stay with it."""
    connection.close()
    connection.settings_dict["OPTIONS"]["transaction_mode"] = "DEFERRED"
    with transaction.atomic():
        before = names()
        in_thread(lambda: Customer.objects.create(name="ada"))
        after = names()
    with pytest.raises(Stop), transaction.atomic():
        send("app", 1, type="welcome")
        raise Stop

    assert ([], ["ada"], []) == (before, after, sent(box))


def test_a_writer_waits_for_its_turn(box: Postbox) -> None:
    """A second thread gets OperationalError once it has waited ``timeout`` seconds."""
    connection.close()
    box.close()
    connection.settings_dict["OPTIONS"]["timeout"] = 0.05

    def write() -> type[BaseException] | None:
        try:
            Customer.objects.create(name="bob")
        except DatabaseError as error:
            return type(error)
        return None

    with transaction.atomic():
        Customer.objects.create(name="ada")
        refused = in_thread(write)

    assert (OperationalError, None, ["ada", "bob"]) == (refused, in_thread(write), names())


def test_a_refused_message_leaves_the_block_open(box: Postbox) -> None:
    """The error of a message is its own, and the block goes on."""
    with transaction.atomic():
        Customer.objects.create(name="ada")
        with pytest.raises(SendError):
            send("bookkeeper", 1, type="welcome")
        send("app", 1, type="welcome")

    assert (["ada"], ["1"]) == (names(), sent(box))


# -- foreign keys -----------------------------------------------------------------------------


def test_foreign_keys_are_checked_at_the_commit(box: Postbox) -> None:
    """As with Django's own backend, a row may refer to a later one, and to none that is missing."""
    with transaction.atomic():
        Invoice.objects.create(customer_id=7)
        Customer.objects.create(id=7, name="ada")
    with pytest.raises(IntegrityError), transaction.atomic():
        Invoice.objects.create(customer_id=8)

    assert [7] == list(Invoice.objects.values_list("customer_id", flat=True))


def test_checks_can_be_disabled_outside_of_a_transaction(box: Postbox) -> None:
    """Fixtures are loaded without checks, and verified afterwards."""
    with connection.constraint_checks_disabled():
        Invoice.objects.create(customer_id=8)
        with pytest.raises(IntegrityError):
            connection.check_constraints()
    with transaction.atomic():
        kept = connection.disable_constraint_checking()
        connection.enable_constraint_checking()
    with pytest.raises(IntegrityError):
        Invoice.objects.create(customer_id=9)

    assert kept is False


def test_the_schema_can_be_changed(box: Postbox) -> None:
    """A table is remade, with rows of others that refer to it, and all is rolled back together."""
    ada = Customer.objects.create(name="ada")
    Invoice.objects.create(customer=ada)
    field = models.CharField(max_length=50, null=True)
    field.set_attributes_from_name("name")
    with connection.schema_editor() as editor:
        editor.alter_field(Customer, Customer._meta.get_field("name"), field)
    with pytest.raises(Stop), connection.schema_editor() as editor:
        editor.delete_model(Tag)
        raise Stop

    assert (1, 0) == (Invoice.objects.filter(customer__name="ada").count(), Tag.objects.count())
    with pytest.raises(IntegrityError):
        Invoice.objects.create(customer_id=9)


# -- after the commit -------------------------------------------------------------------------


def test_a_callback_is_called_after_the_outermost_commit(box: Postbox) -> None:
    """Callbacks of a block that is undone are dropped."""
    called: list[str] = []
    with transaction.atomic():
        transaction.on_commit(lambda: called.append(f"outer {in_thread(names)}"))
        with transaction.atomic():
            Customer.objects.create(name="ada")
            transaction.on_commit(lambda: called.append("inner"))
        with pytest.raises(Stop), transaction.atomic():
            transaction.on_commit(lambda: called.append("undone"))
            raise Stop
        before = list(called)
    transaction.on_commit(lambda: called.append("at once"))

    assert ([], ["outer ['ada']", "inner", "at once"]) == (before, called)


# -- handlers ---------------------------------------------------------------------------------


def handled_by(box: Postbox, agent: Agent, body: Any) -> None:
    """Send a message to the agent, and handle it."""
    box.send("app", body, type="welcome")
    with Postbox(box.file.path, agent=agent, start=False) as worker:
        for _ in range(4):
            worker.run_until_idle()


def test_in_a_handler_the_orm_joins_its_transaction(box: Postbox) -> None:
    """What a failed attempt wrote is undone; the next one's rows and end are one commit."""
    agent = Agent("app")
    seen: list[Any] = []

    @agent.on("welcome", attempts=3, retry="0s ±0%")
    def welcome(name: str, ctx: Context) -> None:
        with transaction.atomic():
            Customer.objects.create(name=f"{name} {ctx.message.attempt}")
        Customer.objects.create(name=f"{name} outside")
        send("app", name, type="next")
        seen.append((names(), in_thread(names)))
        if ctx.message.attempt == 1:
            raise OSError

    handled_by(box, agent, "ada")

    assert [(["ada 1", "ada outside"], []), (["ada 2", "ada outside"], [])] == seen
    assert ["ada 2", "ada outside"] == names()
    kinds = box.query("SELECT type, count(*) FROM onceward_outbox GROUP BY type")
    assert [("next", 1), ("welcome", 1)] == [tuple(each) for each in kinds]


def test_a_handler_that_reads_only_leaves_the_writer_free(box: Postbox) -> None:
    """Reads before the first write take no turn of the writer, and steps may follow them."""
    agent = Agent("app")
    Customer.objects.create(name="ada")

    def write() -> str:
        return str(in_thread(lambda: Customer.objects.create(name="by thread").name))

    @agent.on("welcome")
    def welcome(name: str, ctx: Context) -> None:
        known = names()
        ctx.step(write, name="write")
        Customer.objects.create(name=f"{name} {len(known)}")

    handled_by(box, agent, "bob")

    assert ["ada", "bob 1", "by thread"] == names()


def test_callbacks_in_a_handler_wait_for_its_commit(box: Postbox) -> None:
    """They are called once the handler's end is committed, and not for a failed attempt."""
    agent = Agent("app")
    called: list[Any] = []

    @agent.on("welcome", attempts=3, retry="0s ±0%")
    def welcome(name: str, ctx: Context) -> None:
        attempt = ctx.message.attempt
        with transaction.atomic():
            Customer.objects.create(name=f"{name} {attempt}")
            transaction.on_commit(lambda: called.append((attempt, in_thread(names))))
        transaction.on_commit(lambda: called.append((attempt, "outside")))
        if attempt == 1:
            assert [] == called
            raise OSError

    handled_by(box, agent, "ada")

    assert [(2, ["ada 2"]), (2, "outside")] == called


def test_an_error_of_a_statement_leaves_the_handler_its_transaction(box: Postbox) -> None:
    """A handler may catch what a constraint refused, and go on."""
    agent = Agent("app")

    @agent.on("welcome")
    def welcome(name: str, ctx: Context) -> None:
        Customer.objects.create(name=name)
        with pytest.raises(IntegrityError):
            Customer.objects.create(name=name)
        assert (Customer.objects.get(), False) == Customer.objects.get_or_create(name=name)

    handled_by(box, agent, "ada")

    assert ["ada"] == names()


# -- settings and the end ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "names no agent"),
        ({"agent": "app", "transaction_mode": "EXCLUSIVE"}, "IMMEDIATE"),
        ({"agent": "app", "init_command": "PRAGMA x"}, "no option init_command"),
    ],
)
def test_wrong_options_are_named(box: Postbox, options: dict[str, Any], text: str) -> None:
    """What the settings have wrong is said as Django says it."""
    connection.close()
    box.close()
    connection.settings_dict["OPTIONS"] = options

    with pytest.raises(ImproperlyConfigured, match=text):
        connection.ensure_connection()
    connection.settings_dict["OPTIONS"] = {"agent": "app"}


def test_a_closed_postbox_is_opened_again(box: Postbox) -> None:
    """A connection outlives the postbox that it was made over, as after a fork."""
    Customer.objects.create(name="ada")
    box.close()

    assert (["ada"], True) == (names(), postbox() is not box)


def test_pragmas_of_the_shared_connection_are_refused(box: Postbox) -> None:
    """The error says where the setting is."""
    with connection.cursor() as cursor, pytest.raises(ProgrammingError, match="foreign_keys"):
        cursor.execute("PRAGMA foreign_keys = OFF")
