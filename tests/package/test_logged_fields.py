"""Log lines are found by the agent in whose process they were written."""

import ast

WRITES = {"bind", "debug", "error", "failure", "info", "warning"}
FOLDERS = ("api.", "db.", "observed", "runtime.", "transports.")


def test_every_line_of_an_open_postbox_names_its_agent(trees: dict[str, ast.Module]) -> None:
    """A line of one of many agents in a process is no use without the agent's name."""
    nameless = sorted(
        f"{module}:{call.lineno}"
        for module, tree in trees.items()
        if module.startswith(FOLDERS)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "log"
        and call.func.attr in WRITES
        and "agent" not in {keyword.arg for keyword in call.keywords}
    )

    assert [] == nameless
