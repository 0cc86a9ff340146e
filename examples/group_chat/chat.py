"""
A group chat: a writer and an editor take turns, a manager chooses, a screen shows each word.

    onceward work chat
    python3 chat.py "a lighthouse in the fog"

The first command runs all four agents in one process; ``onceward work chat:writer`` runs one of
them. Each agent has its own file, and each story is a session. Kill any process at any instant and
start it again: the chat continues where it was, and each line, word and choice is there once.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from onceward import Agent, AsyncContext, Msg, Postbox

TOPIC = "chat.story"
LINES = 6
THE_END = "That is the story."
CALLS = Path("calls.log")
SEATS = {
    "writer": "You are a writer. Answer with the next sentence of the story.",
    "editor": "You are an editor. Say in a few words what the next sentence needs.",
    "manager": "Choose who speaks next, or say FINISH.",
}


class Line(Msg, type="line"):
    """What a member of the chat says."""

    number: int
    speaker: str
    text: str


class Turn(Msg, type="turn"):
    """The manager asks a member for a line."""

    line: int


class Word(Msg, type="word"):
    """A piece of a line for the screen."""

    line: int
    position: int
    speaker: str
    text: str
    last: bool


async def ask_model(seat: str, lines: list[Line]) -> str:
    """Answer as a model does over the network: it takes time, and each call is paid for."""
    pay(f"{seat} {len(lines)}\n")
    await asyncio.sleep(0.05)
    return answer(seat, lines)


def pay(call: str) -> None:
    """Note a call of the model, also one that a kill will interrupt."""
    with CALLS.open("a", encoding="utf-8") as ledger:
        ledger.write(call)


def answer(seat: str, lines: Sequence[Line]) -> str:
    """Return what the model says: the same for the same chat."""
    said = len(lines) - 1  # the first line is the user's
    if seat == "manager":
        return "FINISH" if said == LINES else ("writer", "editor")[said % 2]
    word = "sentence" if seat == "writer" else "comment"
    return f"A {word} after {len(lines)} lines, the last of which is by the {lines[-1].speaker}."


# -- the rows of each agent ------------------------------------------------------------------------

# No UNIQUE and no OR IGNORE: what takes effect twice is there twice.
TABLES = """
CREATE TABLE IF NOT EXISTS lines (story TEXT, number INTEGER, speaker TEXT, text TEXT);
CREATE TABLE IF NOT EXISTS words (
    story TEXT, line INTEGER, position INTEGER, speaker TEXT, text TEXT);
"""
HEARD = "SELECT number, speaker, text FROM lines WHERE story = ? ORDER BY number"
WORDS = "SELECT text FROM words WHERE story = ? AND line = ? ORDER BY position"


def create_tables(box: Postbox) -> None:
    """Create the tables of an agent."""
    with box.begin() as tx:
        tx.execute(TABLES)


def join(box: Postbox) -> None:
    """Create the tables of a member, and subscribe it to the chat; that survives its process."""
    create_tables(box)
    box.agents.subscribe(TOPIC)


async def chat_so_far(ctx: AsyncContext) -> list[Line]:
    """Return the lines that the agent has heard; a read without a lock, so steps may follow."""
    rows = await ctx.query(HEARD, (ctx.message.session,))
    return [Line(number=number, speaker=speaker, text=text) for number, speaker, text in rows]


async def keep(ctx: AsyncContext, line: Line) -> None:
    """Store a line, in the commit that ends the message."""
    values = (ctx.message.session, line.number, line.speaker, line.text)
    await ctx.tx.execute("INSERT INTO lines VALUES (?, ?, ?, ?)", values)


async def show(ctx: AsyncContext, line: Line) -> None:
    """Send a line to the screen, word by word, in the commit that ends the message."""
    words = line.text.split()
    for position, text in enumerate(words, 1):
        last = position == len(words)
        word = Word(line=line.number, position=position, speaker=line.speaker, text=text, last=last)
        await ctx.send("screen", word)


# -- the agents ------------------------------------------------------------------------------------


def member(name: str) -> Agent:
    """Return an agent that hears all lines, and speaks when it is asked to."""
    agent = Agent(name)
    agent.at_open(join)

    @agent.on(Line)
    async def hear(line: Line, ctx: AsyncContext) -> None:
        await keep(ctx, line)

    @agent.on(Turn)
    async def speak(turn: Turn, ctx: AsyncContext) -> None:
        text = await ctx.step(ask_model, name, await chat_so_far(ctx))
        line = Line(speaker=name, text=text, number=turn.line)
        await show(ctx, line)
        await ctx.send("manager", line)

    return agent


writer, editor = member("writer"), member("editor")
manager, screen = Agent("manager"), Agent("screen")
manager.at_open(create_tables)
screen.at_open(create_tables)


@manager.on(Line)
async def lead(line: Line, ctx: AsyncContext) -> None:
    """
    Publish a line, and give the next one to a member.

    The line and the turn have one sender and one session, so a member hears the line first; and all
    members hear the same lines in the same order.
    """
    chosen = await ctx.step(ask_model, "manager", [*await chat_so_far(ctx), line])
    await keep(ctx, line)
    await ctx.publish(TOPIC, line)
    if chosen == "FINISH":
        await show(ctx, Line(speaker="manager", text=THE_END, number=line.number + 1))
    else:
        await ctx.send(chosen, Turn(line=line.number + 1))


@screen.on(Word)
async def display(word: Word, ctx: AsyncContext) -> None:
    """
    Store a word, and print the line that it completes.

    The words of a line arrive in their order, with words of others in between. After a kill a line
    may be printed again; its words are stored once.
    """
    story = ctx.message.session
    values = (story, word.line, word.position, word.speaker, word.text)
    await ctx.tx.execute("INSERT INTO words VALUES (?, ?, ?, ?, ?)", values)
    if word.last:
        words = [text for (text,) in await ctx.query(WORDS, (story, word.line))]
        print(f"{word.speaker}:", *words, flush=True)


def main() -> None:
    """Let all members join, and say what the story is about."""
    for agent in (writer, editor, manager, screen):
        Postbox(f"{agent.name}.db", agent=agent, start=False).close()
    title = " ".join(sys.argv[1:])
    with Postbox("user.db", agent="user") as box:
        task = Line(number=1, speaker="user", text=f"Write about {title}.")
        box.session(title).send("manager", task, key=title)  # the same title is the same story
        box.flush(timeout=30)


if __name__ == "__main__":
    main()
