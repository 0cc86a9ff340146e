"""Write the pages of the command from its own help: one for each group of commands."""

from __future__ import annotations

import re

from pieces import code, page, table

from onceward.ops.cli import app

TASKS = {
    "begin": ("Begin", "new init demo completion"),
    "send-and-receive": (
        "Send and receive",
        "send publish receive reply cancel poll tail maintain",
    ),
    "look": ("Look inside", "ls show why stats history thread search sql top inspect"),
    "run": ("Run agents", "work relay serve metrics mcp"),
    "keep": ("Keep files", "pause resume check doctor backup restore takeover migrate ship"),
}
"""Commands without a noun, by page: its title and its commands."""
OWN_HEADING = re.compile(r"\A# .*\n")
USAGE = re.compile(r"```console\n[\w-]+")
PART = re.compile(r"^\*\*(Arguments|Parameters)\*\*:$", re.MULTILINE)
EXAMPLE = re.compile(r"^Example: ((?:.|\n(?!\n))*)", re.MULTILINE)
INSTALL = (
    "`python3 -m pip install 'onceward[cli]'` brings the command `onceward`;"
    " `python3 -m onceward` is the same."
)


def pages() -> dict[str, str]:
    """Return the page of the command and those of its groups, by path in the reference."""
    groups = _groups()
    found = {"cli.md": _index(groups)}
    for name, (title, commands) in groups.items():
        parts = [_command(full) for full in commands]
        about = [app.NOUNS[name]] if name in app.NOUNS else []
        found[f"cli/{name}.md"] = page(title, *about, *parts)
    return found


def navigation() -> list[dict[str, str]]:
    """Return the pages of the groups, for the navigation of the site."""
    return [{title: f"reference/cli/{name}.md"} for name, (title, _) in _groups().items()]


def _groups() -> dict[str, tuple[str, list[str]]]:
    """Return title and commands by page; nouns come after the tasks."""
    tasks = {name: (title, listed.split()) for name, (title, listed) in TASKS.items()}
    nouns = {
        noun: (f"onceward {noun}", [full for full in app.COMMANDS if full.startswith(f"{noun} ")])
        for noun in app.NOUNS
    }
    return tasks | nouns


def _index(groups: dict[str, tuple[str, list[str]]]) -> str:
    parts = [INSTALL, *app.HELP.strip().split("\n\n")[1:]]
    for name, (title, commands) in groups.items():
        rows = [
            (f"[{code(full)}](cli/{name}.md#{_anchor(full)})", app.summary(full))
            for full in commands
        ]
        parts += [f"## {title}", table(("command", "what it does"), *rows)]
    return page("Command", *parts)


def _anchor(full: str) -> str:
    return f"onceward-{full}".replace(" ", "-")


def _command(full: str) -> str:
    """Return the section of a command: its help in Markdown, with its examples as blocks."""
    program = app.build(full.split())
    for word in full.split():
        program = program[word]
    text = OWN_HEADING.sub("", program.generate_docs(output_format="markdown"))
    text = USAGE.sub(f"```text\nonceward {full}", text, count=1)
    text = EXAMPLE.sub(lambda found: _example(found[1]), text)
    return f"## onceward {full}\n{PART.sub(_part, text)}"


def _example(text: str) -> str:
    return f"```console\n$ {' '.join(text.split())}\n```"


def _part(found: re.Match[str]) -> str:
    return {"Arguments": "Arguments:", "Parameters": "Options:"}[found[1]]
