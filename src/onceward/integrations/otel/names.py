"""
Define the names of OpenTelemetry's messaging conventions that onceward uses.

They are repeated here because the package of the conventions is not part of the API; a test
compares them with its current release.
"""

from __future__ import annotations

from typing import Final

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
SCOPE: Final = "onceward"
"""Name of the tracer and of the meter, and value of ``messaging.system``."""

MESSAGING_SYSTEM: Final = "messaging.system"
MESSAGING_OPERATION_NAME: Final = "messaging.operation.name"
MESSAGING_OPERATION_TYPE: Final = "messaging.operation.type"
MESSAGING_DESTINATION_NAME: Final = "messaging.destination.name"
MESSAGING_MESSAGE_ID: Final = "messaging.message.id"
MESSAGING_MESSAGE_CONVERSATION_ID: Final = "messaging.message.conversation_id"
MESSAGING_BATCH_MESSAGE_COUNT: Final = "messaging.batch.message_count"
ERROR_TYPE: Final = "error.type"

MESSAGING_CLIENT_SENT_MESSAGES: Final = "messaging.client.sent.messages"
MESSAGING_CLIENT_CONSUMED_MESSAGES: Final = "messaging.client.consumed.messages"
MESSAGING_CLIENT_OPERATION_DURATION: Final = "messaging.client.operation.duration"
MESSAGING_PROCESS_DURATION: Final = "messaging.process.duration"

BOUNDARIES: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Upper limits of a histogram's buckets in seconds, as the conventions ask."""

# Of onceward alone: the conventions give each system a namespace.
AGENT: Final = "messaging.onceward.agent"
SESSION: Final = "messaging.onceward.session"
TYPE: Final = "messaging.onceward.message.type"
ATTEMPT: Final = "messaging.onceward.message.attempt"
STEP: Final = "messaging.onceward.step.name"
STEP_ATTEMPT: Final = "messaging.onceward.step.attempt"
RUN_ID: Final = "messaging.onceward.run.id"
OUTCOME: Final = "messaging.onceward.outcome"
REASON: Final = "messaging.onceward.reason"
DUE_AT: Final = "messaging.onceward.due_at"
