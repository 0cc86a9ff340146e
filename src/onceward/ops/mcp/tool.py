"""Offer a function to models as a tool, with a short schema and errors with advice."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, Final

from mcp.server.mcpserver.tools import Tool
from mcp_types import ToolAnnotations
from pydantic import ValidationError

from onceward.message.names import quoted
from onceward.ops.mcp.advice import advised, refused

PROBLEMS: Final = 3
"""Maximum wrong arguments in one error."""
CURE: Final = "Nothing was done. Correct the arguments, then call again."


class ModelTool(Tool):  # type: ignore[misc] # the library is an extra
    """
    A tool with a short listing, because a model pays for each token.

    Its listing has no schema of answers, which name their fields themselves. Unknown arguments are
    refused: a model that invents one must not believe that it works.
    """

    @property
    def output_schema(self) -> dict[str, Any] | None:
        """Return None, so that no schema is listed; answers are still structured."""
        return None

    async def run(
        self,
        arguments: dict[str, Any],
        context: Any,
        convert_result: bool = False,  # noqa: FBT001, FBT002 - the signature of the base class
    ) -> Any:
        """Run the tool; raise ToolError with each invalid argument."""
        try:
            self.fn_metadata.validate_arguments(arguments)
        except ValidationError as error:
            what = f"{self.name}: {self._told(error)}"
            raise refused(what, CURE) from error
        return await super().run(arguments, context, convert_result)

    def _told(self, error: ValidationError) -> str:
        """Return the errors by argument; a union type has one per alternative."""
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


def tool(function: Callable[..., Awaitable[Any]], hints: ToolAnnotations) -> Tool:
    """
    Return the tool that calls *function*; a model reads its docstring and annotations.

    Errors of the package are raised with advice for the model.
    """

    @wraps(function)
    async def run(*args: Any, **given: Any) -> Any:
        with advised():
            return await function(*args, **given)

    made = ModelTool.from_function(run, description=inspect.getdoc(function), annotations=hints)
    model = made.fn_metadata.arg_model
    model.model_config["extra"] = "forbid"
    model.model_rebuild(force=True)
    made.parameters = short(model.model_json_schema(by_alias=True))
    return made


def short(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of arguments without titles and null defaults."""
    properties = {name: _short(each) for name, each in schema["properties"].items()}
    return {key: value for key, value in schema.items() if key != "title"} | {
        "properties": properties
    }


def _short(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of one argument; a nullable one becomes optional."""
    kept = {key: value for key, value in schema.items() if key != "title"}
    kinds = kept.get("anyOf", [])
    if kept.get("default", ...) is None and {"type": "null"} in kinds:
        del kept["default"], kept["anyOf"]
        rest = [each for each in kinds if each != {"type": "null"}]
        kept |= rest[0] if len(rest) == 1 else {"anyOf": rest}
    return kept
