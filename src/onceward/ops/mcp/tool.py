"""Offer a function to models as a tool: a short schema, and errors that say what to correct."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from mcp.server.mcpserver.tools import Tool
from mcp_types import ToolAnnotations
from pydantic import ValidationError

from onceward.message.names import quoted
from onceward.ops.mcp.advice import refused

PROBLEMS: Final = 3
"""Most wrong arguments that one error names."""
CURE: Final = "Nothing was done. Correct the arguments, then call again."


class ModelTool(Tool):  # type: ignore[misc] # the library is an extra
    """
    A tool whose every token a model pays for in each conversation.

    Its listing has no schema of answers, which name their fields themselves. An argument
    that it does not have is refused: a model that invents one must not believe that it counts.
    """

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """Return nothing to be listed; answers are structured nevertheless."""
        return None

    async def run(
        self,
        arguments: dict[str, Any],
        context: Any,
        convert_result: bool = False,  # noqa: FBT001, FBT002 - the signature of the base class
    ) -> Any:
        """Run the tool; raise ToolError naming each argument that does not fit."""
        try:
            self.fn_metadata.validate_arguments(arguments)
        except ValidationError as error:
            what = f"{self.name}: {self._told(error)}"
            raise refused(what, CURE) from error
        return await super().run(arguments, context, convert_result)

    def _told(self, error: ValidationError) -> str:
        """Return what is wrong, by argument; one of several types has a reason for each."""
        reasons: dict[str, list[str]] = {}
        for each in error.errors(include_url=False, include_input=False, include_context=False):
            name = quoted(str(each["loc"][0]))
            if each["type"] == "extra_forbidden":
                known = ", ".join(self.parameters["properties"])
                reasons[f"there is no argument {name}, only {known}"] = []
            elif each["type"] == "missing":
                reasons[f"argument {name} is missing"] = []
            else:
                words = each["msg"][:1].lower() + each["msg"][1:]
                reasons.setdefault(f"argument {name}: ", []).append(words)
        told = [what + ", or ".join(why) for what, why in reasons.items()]
        return "; ".join(told[:PROBLEMS])


def tool(function: Callable[..., Any], hints: ToolAnnotations) -> Tool:
    """Return the tool that calls *function*, whose docstring and annotations a model reads."""
    made = ModelTool.from_function(
        function, description=inspect.getdoc(function), annotations=hints
    )
    model = made.fn_metadata.arg_model
    model.model_config["extra"] = "forbid"
    model.model_rebuild(force=True)
    made.parameters = short(model.model_json_schema(by_alias=True))
    return made


def short(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of arguments without what says nothing: titles, and null by default."""
    properties = {name: _short(each) for name, each in schema["properties"].items()}
    return {key: value for key, value in schema.items() if key != "title"} | {
        "properties": properties
    }


def _short(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one argument; one that may be null is left out instead."""
    kept = {key: value for key, value in schema.items() if key != "title"}
    kinds = kept.get("anyOf", [])
    if kept.get("default", ...) is None and {"type": "null"} in kinds:
        del kept["default"], kept["anyOf"]
        rest = [each for each in kinds if each != {"type": "null"}]
        kept |= rest[0] if len(rest) == 1 else {"anyOf": rest}
    return kept
