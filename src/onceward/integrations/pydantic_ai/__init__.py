"""
Make agents of pydantic-ai durable; needs ``onceward[pydantic-ai]``.

In a handler or a run, what an agent with ``OncewardDurability`` calls are steps.

Imports the public names, integrations and message.
"""

from onceward.integrations.pydantic_ai.durability import OncewardDurability
from onceward.integrations.pydantic_ai.resolving import Resolved, resolve
from onceward.integrations.pydantic_ai.tokens import text

__all__ = ["OncewardDurability", "Resolved", "resolve", "text"]
