"""
Keep the state of LangGraph's graphs in an agent's file; needs ``onceward[langgraph]``.

In a handler the last checkpoint, the messages and the processed mark are one commit.

Imports the public names, integrations, file and message.
"""

from onceward.message.extras import needs

with needs("langgraph", "onceward.integrations.langgraph"):
    from onceward.integrations.langgraph.running import (
        ainvoke,
        anode_step,
        invoke,
        node_step,
        thread_config,
    )
    from onceward.integrations.langgraph.saver import OncewardSaver

__all__ = ["OncewardSaver", "ainvoke", "anode_step", "invoke", "node_step", "thread_config"]
