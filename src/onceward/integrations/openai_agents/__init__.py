"""
Make agents of the OpenAI Agents SDK durable; needs ``onceward[openai-agents]``.

In a handler the requests of models and the calls of tools are steps, and the conversation
is committed with the processed mark.

Imports the public names, integrations, file and message.
"""

from onceward.message.extras import needs

with needs("openai-agents", "onceward.integrations.openai_agents"):
    from onceward.integrations.openai_agents.runner import OncewardRunner
    from onceward.integrations.openai_agents.session import OncewardSession

__all__ = ["OncewardRunner", "OncewardSession"]
