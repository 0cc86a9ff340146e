"""Messages in the admin: lists to read, with retry and cancel."""

from __future__ import annotations

from typing import Any, Final

from django.contrib import admin, messages

from onceward.errors import OncewardError
from onceward.integrations.django.models import DeadMessage, InboxMessage, OutboxMessage
from onceward.integrations.django.postboxes import postbox

CHANGE: Final = ["change"]
"""The permission that actions need."""


class RecordAdmin(admin.ModelAdmin):
    """A list that changes by actions only."""

    search_fields = ("message_id", "type", "body")
    list_per_page = 50
    show_full_result_count = False

    def has_add_permission(self, request: Any) -> bool:
        """Return False: messages are sent by the application."""
        del request
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """Return whether the user may use the actions; no message is edited."""
        return obj is None and super().has_change_permission(request)

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        """Return False: maintenance deletes what has ended."""
        del request, obj
        return False

    def get_readonly_fields(self, request: Any, obj: Any = None) -> list[str]:
        """Return all fields."""
        del request, obj
        return [field.name for field in self.model._meta.fields]


class CancelAdmin(RecordAdmin):
    """A list of messages that can be cancelled."""

    actions = ("cancel",)

    @admin.action(permissions=CHANGE, description="Cancel the selected messages")  # type: ignore[untyped-decorator]
    def cancel(self, request: Any, queryset: Any) -> None:
        """Cancel messages, and say what happened to each of them."""
        box = postbox(queryset.db)
        for each in queryset:
            found = box.cancel(each.message_id, reason=f"admin: {request.user}")
            self.message_user(request, f"{each}: {found.outcome}")


@admin.register(InboxMessage)
class ReceivedAdmin(CancelAdmin):
    """The messages that the agent received, and its tasks."""

    list_display = ("type", "state", "sender", "attempts", "received", "ended", "waits_for")
    list_filter = ("state", "type")


@admin.register(OutboxMessage)
class SentAdmin(CancelAdmin):
    """The messages that the agent sent."""

    list_display = ("type", "state", "recipient", "attempts", "created", "ended", "reason")
    list_filter = ("state", "recipient", "type")


@admin.register(DeadMessage)
class DeadLetterAdmin(RecordAdmin):
    """The messages that ended badly."""

    actions = ("retry",)
    list_display = ("type", "sender", "recipient", "attempts", "died", "reason", "last_error")
    list_filter = ("origin", "type")

    @admin.action(permissions=CHANGE, description="Retry the selected messages")  # type: ignore[untyped-decorator]
    def retry(self, request: Any, queryset: Any) -> None:
        """Return messages to the file where they ended, to be tried again."""
        box = postbox(queryset.db)
        for each in queryset:
            try:
                box.dead_letters.replay(each.message_id)
            except OncewardError as error:
                self.message_user(request, f"{each}: {error}", messages.ERROR)
            else:
                self.message_user(request, f"{each}: waits to be tried again")
