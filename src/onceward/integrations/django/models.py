"""
The messages of the agent, for the admin and for queries: public views of its file, to be read.

They are not managed: no migration creates or changes them.
"""

from __future__ import annotations

from typing import Any

from django.db import models

from onceward.integrations.django.times import moment


class Record(models.Model):
    """The columns that the views of messages have in common."""

    seq: Any = models.BigIntegerField(primary_key=True)
    message_id: Any = models.CharField("id", max_length=200, db_column="id")
    sender: Any = models.CharField(max_length=200)
    recipient: Any = models.CharField(max_length=200)
    session: Any = models.CharField(max_length=200)
    type: Any = models.CharField(max_length=200)
    priority: Any = models.CharField(max_length=20)
    attempts: Any = models.IntegerField()
    reason: Any = models.TextField(null=True)
    body: Any = models.TextField(null=True)

    class Meta:
        """Of no table."""

        abstract = True
        managed = False
        ordering = ("-seq",)

    def __str__(self) -> str:
        return f"{self.type} {self.message_id}"


class InboxMessage(Record):
    """A message that this agent received: of others, or of itself, such as a task."""

    state: Any = models.CharField(max_length=20)
    waits_for: Any = models.TextField(null=True)
    received_at: Any = models.BigIntegerField()
    ended_at: Any = models.BigIntegerField(null=True)

    class Meta(Record.Meta):
        """Where it is read."""

        db_table = "onceward_inbox"
        verbose_name = "received message"

    @property
    def received(self) -> Any:
        """When it was received."""
        return moment(self.received_at)

    @property
    def ended(self) -> Any:
        """When it ended."""
        return moment(self.ended_at)


class OutboxMessage(Record):
    """A message that this agent sent."""

    state: Any = models.CharField(max_length=20)
    created_at: Any = models.BigIntegerField()
    due_at: Any = models.BigIntegerField(null=True)
    ended_at: Any = models.BigIntegerField(null=True)

    class Meta(Record.Meta):
        """Where it is read."""

        db_table = "onceward_outbox"
        verbose_name = "sent message"

    @property
    def created(self) -> Any:
        """When it was sent."""
        return moment(self.created_at)

    @property
    def ended(self) -> Any:
        """When it ended."""
        return moment(self.ended_at)


class DeadMessage(Record):
    """A message that ended badly."""

    origin: Any = models.CharField(max_length=20)
    last_error: Any = models.TextField(null=True)
    dead_at: Any = models.BigIntegerField()

    class Meta(Record.Meta):
        """Where it is read."""

        db_table = "onceward_dead_letters"
        verbose_name = "dead letter"

    @property
    def died(self) -> Any:
        """When it ended."""
        return moment(self.dead_at)
