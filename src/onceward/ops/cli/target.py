"""Decide which file a command works on: a flag, then the environment, then the project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import Parameter

from onceward.file.environment import env_or_project
from onceward.file.file_checks import refuse_no_file
from onceward.message.names import DEFAULT_SESSION, DIRECTORY, agent_name
from onceward.ops.cli.exit_codes import NothingThere, Usage
from onceward.ops.cli.file_word import names_agent
from onceward.ops.cli.options import Quiet
from onceward.ops.cli.output import Style, style
from onceward.ops.views.handles import holders

if TYPE_CHECKING:
    from onceward import Postbox


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Answer:
    """How a command answers."""

    json: Annotated[bool, Quiet] = False
    """Print one JSON document, not a table or lines; errors are JSON objects on stderr."""

    @property
    def style(self) -> Style:
        """The output form."""
        return style("json" if self.json else None)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Where(Answer):
    """The file that a command works on."""

    db: Path | None = None
    """The agent's file, or the word after the command. Default: ONCEWARD_DB, ONCEWARD_AGENT."""
    agent: str | None = None
    """Instead of --db: the agent whose file is NAME.db in the home."""
    home: Path | None = None
    """The home folder of the agent. Default: ONCEWARD_HOME, else here."""

    def path(self) -> Path:
        """Return the file; raise Usage if nothing names one."""
        if self.db is not None and self.agent is not None:
            raise Usage("--db and --agent both name the file: give one of them")
        if self.db is not None and self.home is not None:
            raise Usage("--db names the file, and --home the folder of NAME.db: give one of them")
        by_name = self.agent is not None or self.home is not None
        named = self.db or (None if by_name else env_or_project("db"))
        if named:
            return Path(named)
        agent = self.agent or env_or_project("agent")
        if not agent:
            options = "--db FILE or --agent NAME, or set ONCEWARD_DB or ONCEWARD_AGENT"
            raise Usage(f"which agent? Give {options}")
        return agent_file(agent, self.home)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Conversation(Where):
    """The file that a command works on, and one of its sessions."""

    session: str | None = None
    """The session. Default: send in the default session, list and receive from all sessions."""


ANSWER: Final = Answer()
WHERE: Final = Where()
CONVERSATION: Final = Conversation()
"""The defaults of commands: no option is given."""


def as_path(path: Path) -> Path:
    """Return *path*; raise Usage if it is a word such as ``module:agent``."""
    if names_agent(str(path)):
        raise Usage(
            f"{path} names an agent of a module, and a path is wanted here: "
            f"give the agent's file, NAME.db, or --agent NAME"
        )
    return path


def in_session(where: Conversation) -> str:
    """Return the session to send in or to poll: flag, ONCEWARD_SESSION, project, or default."""
    return where.session or env_or_project("session") or DEFAULT_SESSION


def agent_file(agent: str, home: Path | None = None) -> Path:
    """Return the path of an agent's file in a home folder."""
    return as_path(home or Path(env_or_project("home") or ".")) / f"{agent_name(agent)}.db"


def home_folder(home: Path | None) -> Path:
    """Return an existing home: the given one, else ONCEWARD_HOME, else here."""
    folder = as_path(home or Path(env_or_project("home") or "."))
    if folder.is_file():
        raise Usage(f"{folder} is a file: give its folder")
    if not folder.is_dir():
        cure = f"correct the name, or create it with onceward init AGENT --home {folder}"
        raise NothingThere(f"there is no folder {folder}: {cure}")
    return folder


def chosen(files: Sequence[Path], where: Where) -> list[Path]:
    """Return the files given as words, else the one of *where*; raise Usage if both name some."""
    if files and (where.db, where.agent, where.home) != (None, None, None):
        raise Usage("a FILE, --db, --agent and --home each name the file: give one of them")
    agents = [
        as_path(file) for file in files if file.name != DIRECTORY
    ]  # a glob of a home matches it too
    return agents or list(files) or [where.path()]


def chosen_files(files: Sequence[Path], where: Where) -> list[Path]:
    """Return the chosen files; with --home and neither a file nor an agent those of the home."""
    if files or where.db or where.agent or not where.home:
        return chosen(files, where)
    found = home_files(where.home)
    if not found:
        cure = f"correct the name, or create one with onceward init NAME --home {where.home}"
        raise NothingThere(f"{where.home} has no agent's file: {cure}")
    return found


def home_files(home: Path | None) -> list[Path]:
    """Return the agents' files of a home; see ``home_folder``."""
    return sorted(path for path in home_folder(home).glob("*.db") if path.name != DIRECTORY)


def existing(path: Path) -> Path:
    """Return *path*; raise NothingThere if there is no file, because only init creates files."""
    refuse_no_file(as_path(path))
    refuse_deleted(path)
    if not path.exists():
        cure = "correct the name, or create an agent's file NAME.db with onceward init NAME"
        raise NothingThere(f"there is no file {path}: {cure}")
    return path


def refuse_deleted(path: Path) -> None:
    """
    Refuse a file that was deleted while a process has it open: a new file would get its WAL.

    Raises:
        NothingThere: it was deleted while the processes in the message had it open.

    """
    if not path.exists() and (gone := [holder.pid for holder in holders(path) if holder.deleted]):
        pids = " ".join(map(str, gone))
        copy = f"kill -STOP {pids}, copy it and its -wal from /proc/{gone[0]}/fd, or take a backup"
        cure = f"{copy}; then end these processes, and move the copy to this path"
        raise NothingThere(f"{path} was moved or deleted, and process {pids} still has it: {cure}")


def open_box(path: Path) -> Postbox:
    """Open an existing file without engines; workers and relays run them."""
    from onceward import Postbox  # noqa: PLC0415 - commands that only read do not need it

    return Postbox(existing(path), start=False)
