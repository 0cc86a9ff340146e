"""Agents of pydantic-ai on models that answer from memory, and the calls that they made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

Say = Sequence[Any]
"""Parts of one answer of a model."""


@pytest.fixture
def calls() -> list[str]:
    """Return what was called, in order: models, tools, handlers of events."""
    return []


@pytest.fixture
def model(calls: list[str]) -> Callable[..., Any]:
    """Return what makes a model of the answers that it gives, one after the other."""
    pytest.importorskip("pydantic_ai", reason="pip install 'onceward[pydantic-ai]' brings it")
    from pydantic_ai.messages import ModelResponse, TextPart  # noqa: PLC0415 - an extra
    from pydantic_ai.models.function import DeltaToolCall, FunctionModel  # noqa: PLC0415 - as above

    def make(*answers: Say) -> Any:
        def answer(messages: list[Any]) -> Say:
            calls.append("model")
            return answers[sum(isinstance(each, ModelResponse) for each in messages)]

        def respond(messages: list[Any], _info: Any) -> Any:
            return ModelResponse(parts=list(answer(messages)))

        async def stream(messages: list[Any], _info: Any) -> Any:
            for index, part in enumerate(answer(messages)):
                if isinstance(part, TextPart):
                    for word in part.content.split(" "):
                        yield word
                else:
                    yield {
                        index: DeltaToolCall(
                            name=part.tool_name,
                            json_args=part.args_as_json_str(),
                            tool_call_id=part.tool_call_id,
                        )
                    }

        return FunctionModel(respond, stream_function=stream)

    return make
