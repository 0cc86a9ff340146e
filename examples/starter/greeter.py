"""An agent that greets people by name and counts the greetings."""

from onceward import Agent, Context, Msg, Postbox
from onceward.types import Tick


class Hello(Msg, type="hello"):
    """A name to greet."""

    name: str


class Greeting(Msg, type="greeting"):
    """The reply."""

    text: str


greeter = Agent("greeter", description="greets by name")


@greeter.at_open
def create_tables(box: Postbox) -> None:
    """Create the agent's own table, beside those of onceward in the same file."""
    with box.begin() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS greeted (name TEXT PRIMARY KEY, times INTEGER)")


@greeter.on(Hello)
def greet(hello: Hello, ctx: Context) -> Greeting:
    """Greet; the count, the reply and the end of the message are one commit."""
    ctx.tx.execute(
        "INSERT INTO greeted VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET times = times + 1",
        (hello.name,),
    )
    return Greeting(text=f"Hello, {hello.name}!")


@greeter.every("1h")
def report(tick: Tick, ctx: Context) -> None:
    """Print every hour how many names were greeted."""
    [(count,)] = ctx.tx.execute("SELECT count(*) FROM greeted")
    print(f"{tick.schedule}: {count} names so far")
