"""The admin lists messages, and retries and cancels them."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from onceward import Agent, Postbox
from onceward.integrations.django.models import DeadMessage, InboxMessage, OutboxMessage

agent = Agent("app")


@agent.on("order", attempts=1)
def order(number: int) -> None:
    """Refuse each order."""
    raise ValueError(number)


@pytest.fixture
def client(box: Postbox) -> Client:
    """A client of the site in which an administrator has logged in."""
    made = Client()
    made.force_login(User.objects.create_superuser("ada"))
    return made


def handle(box: Postbox) -> None:
    """Have the agent handle what is due."""
    with Postbox(box.file.path, agent=agent, start=False) as worker:
        worker.run_until_idle()


def act(client: Client, model: str, action: str, *rows: int) -> str:
    """Do an action on rows of a list; return the page that follows."""
    asked = {"action": action, "_selected_action": list(rows)}
    answer: Any = client.post(f"/admin/onceward/{model}/", asked, follow=True)
    return str(answer.content.decode())


def test_messages_are_listed_and_shown(client: Client, box: Postbox) -> None:
    """Each list and each message has a page; nothing can be added, edited or deleted."""
    message_id = box.send("app", 7, type="order")
    box.send("app", 8, type="order")
    handle(box)

    for model in (InboxMessage, OutboxMessage, DeadMessage):
        name = model._meta.model_name
        listed: Any = client.get(f"/admin/onceward/{name}/", {"q": message_id})
        if model is InboxMessage:
            continue  # a dead letter is received no more
        row = model.objects.get(message_id=message_id)
        shown: Any = client.get(f"/admin/onceward/{name}/{row.pk}/change/")
        refused = client.post(f"/admin/onceward/{name}/{row.pk}/change/", {"body": "9"})
        added = client.get(f"/admin/onceward/{name}/add/")

        assert (200, 200, 403, 403) == (
            listed.status_code,
            shown.status_code,
            refused.status_code,
            added.status_code,
        )
        assert message_id in shown.content.decode()
        assert "1 result" in listed.content.decode()


def test_a_dead_letter_is_retried(client: Client, box: Postbox) -> None:
    """It is handled again by the next worker."""
    box.send("app", 7, type="order")
    handle(box)
    [dead] = DeadMessage.objects.all()

    page = act(client, "deadmessage", "retry", dead.pk)

    assert "waits to be tried again" in page
    assert (0, ["pending"]) == (
        DeadMessage.objects.count(),
        list(InboxMessage.objects.values_list("state", flat=True)),
    )


def test_a_message_is_cancelled(client: Client, box: Postbox) -> None:
    """Its row says so, with the user's name; so does that of one that has not left."""
    box.send("app", 7, type="order")
    box.send("app", 8, type="order", delay="1h")
    box.run_until_idle()
    [waiting] = InboxMessage.objects.all()

    page = act(client, "inboxmessage", "cancel", waiting.pk)
    delayed = act(client, "outboxmessage", "cancel", OutboxMessage.objects.latest("seq").pk)
    waiting.refresh_from_db()

    assert (": cancelled" in page, ": cancelled" in delayed) == (True, True)
    assert ("cancelled", True) == (waiting.state, "ada" in waiting.reason)


def test_actions_need_the_permission_to_change(client: Client, box: Postbox) -> None:
    """A user who may only view gets the list without actions."""
    user = User.objects.create_user("bob", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_inboxmessage"))
    box.send("app", 7, type="order")
    box.run_until_idle()
    client.force_login(user)

    act(client, "inboxmessage", "cancel", InboxMessage.objects.get().pk)

    assert ["pending"] == list(InboxMessage.objects.values_list("state", flat=True))
