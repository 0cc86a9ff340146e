"""Which file a command means: a flag, then the environment, then the project, then nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from onceward import Postbox
from onceward.cli.exit_codes import NothingThere, Usage
from onceward.cli.handles import holders
from onceward.cli.output import Style, style
from onceward.db.environment import env_or_project
from onceward.model.names import DEFAULT_SESSION, agent_name

Quiet = Parameter(negative=(), show_default=False)
"""An option that is either there or not."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Answer:
    """How a command answers."""

    json: Annotated[bool, Quiet] = False
    """Print one JSON document, and errors as objects on stderr; without it a table on a terminal, else tab-separated lines."""

    @property
    def style(self) -> Style:
        """The form of what is printed."""
        return style("json" if self.json else None)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Where(Answer):
    """Whose file a command works on."""

    db: Path | None = None
    """The agent's file. Default: ONCEWARD_DB, then agents/ONCEWARD_AGENT.db in ONCEWARD_HOME (or here)."""
    agent: str | None = None
    """Instead of --db: the agent whose file is agents/NAME.db in the home folder, ONCEWARD_HOME or the current one."""

    def path(self) -> Path:
        """
        Return the file that is meant.

        Raises:
            Usage: nothing says which.

        """
        if self.db is not None and self.agent is not None:
            msg = "--db and --agent both name the file: give one of them"
            raise Usage(msg)
        named = self.db or (None if self.agent else env_or_project("db"))
        if named:
            return Path(named)
        agent = self.agent or env_or_project("agent")
        if not agent:
            msg = (
                "which agent? Give --db FILE or --agent NAME, or set ONCEWARD_DB or ONCEWARD_AGENT"
            )
            raise Usage(msg)
        return agent_file(agent)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Conversation(Where):
    """Whose file, and which of its sessions."""

    session: str | None = None
    """The session meant; without it the default one is sent in, and all are looked at and received from."""


def in_session(where: Conversation) -> str:
    """Return the session to send in or to poll: the flag, else ONCEWARD_SESSION, else the project's, else the default one."""
    return where.session or env_or_project("session") or DEFAULT_SESSION


def agent_file(agent: str, home: Path | None = None) -> Path:
    """Return where an agent's file lies in a home folder."""
    return (home or Path(env_or_project("home") or ".")) / "agents" / f"{agent_name(agent)}.db"


def existing(path: Path) -> Path:
    """Return *path*; raise NothingThere if nothing is there, because no command but init creates files by the way."""
    refuse_deleted(path)
    if not path.exists():
        msg = f"there is no file {path}: correct its name, or have onceward init NAME create an agent's file in agents/NAME.db"
        raise NothingThere(msg)
    return path


def refuse_deleted(path: Path) -> None:
    """
    Do nothing, unless *path* is gone and somebody still has what was there: a new file in its place would meet the old one's WAL.

    Raises:
        NothingThere: it was deleted under the processes that the message names.

    """
    if not path.exists() and (gone := [holder.pid for holder in holders(path) if holder.deleted]):
        pids = " ".join(map(str, gone))
        rescue = f"kill -STOP {pids}, copy it and its -wal from /proc/{gone[0]}/fd, or take a backup; then end these processes"
        msg = f"{path} was deleted, and process {pids} still has it: {rescue}, and put the copy in its place"
        raise NothingThere(msg)


def open_box(path: Path) -> Postbox:
    """Open a file that exists, without engines: a command does its one thing and leaves the rest to workers and relays."""
    return Postbox(existing(path), start=False)
