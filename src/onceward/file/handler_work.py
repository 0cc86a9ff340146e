"""Read the steps and the output of a message's handler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from onceward.file.sql_parts import columns
from onceward.message.handler_work import StepInfo, StreamInfo

Ask = Callable[[str, dict[str, str]], list[tuple[Any, ...]]]
"""Returns the rows of a statement."""

# A session may have had many runs: the last ones are asked. By itself, as a view that groups its
# rows is read from one end to the other for an id that another statement has to find.
HANDLED_AS: Final = """
SELECT coalesce((SELECT newest.event_ids ->> '$[0]'
                   FROM (SELECT event_ids
                           FROM onceward_runs
                          WHERE session = :session
                          ORDER BY seq DESC LIMIT 200) AS newest
                  WHERE EXISTS (SELECT 1 FROM json_each(newest.event_ids) AS j WHERE j.value = :id)
                  LIMIT 1), :id)
"""

STEPS: Final = f"""
SELECT {columns(StepInfo)} FROM onceward_steps WHERE message_id = :id ORDER BY seq
"""  # noqa: S608 - columns of ours
STREAMS: Final = f"""
SELECT {columns(StreamInfo)} FROM onceward_output_streams
 WHERE message_id = :id ORDER BY begun_at, name
"""  # noqa: S608 - columns of ours


def handled(
    ask: Ask, message_id: str, session: str
) -> tuple[tuple[StepInfo, ...], tuple[StreamInfo, ...]]:
    """
    Return the steps of a message's handler, and its streams of output.

    A run stores those of all its messages with the first one.
    """
    [(first,)] = ask(HANDLED_AS, {"id": message_id, "session": session})
    steps, streams = (ask(sql, {"id": str(first)}) for sql in (STEPS, STREAMS))
    return tuple(StepInfo(*row) for row in steps), tuple(StreamInfo(*row) for row in streams)
