"""Homes of agents for the pages: one with everything in it, and one with much in it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import apsw

from onceward import Agent, Context, Msg, Postbox, Reject, Retry, Run
from onceward.testing import Controls, ManualClock

NUMBERS = """
WITH RECURSIVE numbers (value) AS (
    SELECT 1 UNION ALL SELECT value + 1 FROM numbers WHERE value < ?
)
"""
LANES = f"""{NUMBERS}
INSERT INTO _onceward_lanes (sender, name, rank, session)
SELECT 'other', 'session-' || value, 2, 'session-' || value FROM numbers
"""
EVIL = "<script>alert('body')</script><img src=x onerror=alert(1)>"


class Paid(Msg, type="invoice.paid"):
    """The reply of billing."""

    id: int


def shop_agent() -> Agent:
    """Return the agent that starts everything."""
    shop = Agent("shop")

    @shop.on(Paid)
    def thank(paid: Paid, ctx: Context) -> None:
        ctx.send("mailer", {"to": "ada@example.org", "order": paid.id}, type="mail.wanted")

    return shop


def billing_agent() -> Agent:
    """Return an agent that replies, asks another, refuses and fails."""
    billing = Agent("billing")

    @billing.on("invoice.created")
    def pay(body: dict[str, Any], ctx: Context) -> None:
        if body["cents"] < 0:
            msg = "negative amount"
            raise Reject(msg)
        ctx.send("ledger", {"entry": body["id"], "cents": body["cents"]}, type="ledger.entry")
        ctx.reply(Paid(id=body["id"]))

    @billing.on("refund.wanted")
    def refund(body: dict[str, Any]) -> None:
        msg = "the bank answered 503 Service Unavailable"
        raise Retry(msg, after=60)

    return billing


def ledger_agent() -> Agent:
    """Return an agent whose handlers are quick."""
    ledger = Agent("ledger")

    @ledger.on("ledger.entry")
    def enter(body: dict[str, Any]) -> None:
        return

    return ledger


def coder_agent() -> Agent:
    """Return an agent whose sessions have runs."""
    coder = Agent("coder")

    @coder.runs(mode="followup", cap=100)
    def turn(run: Run) -> str:
        answer = f"did {run.message.body}"
        run.reply(answer)
        return answer

    return coder


def lively(folder: Path, clock: ManualClock) -> dict[str, str]:
    """
    Make a home with every kind of trouble; return ids of its messages by what they are.

    The agents: shop asks billing, which asks ledger; coder has runs; mailer has no handler;
    warehouse cannot be reached.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:

        def opened(name: str, agent: Agent | None = None, **options: Any) -> Postbox:
            return stack.enter_context(
                Postbox(
                    folder / f"{name}.db",
                    agent=agent or name,
                    start=False,
                    testing=Controls(clock=clock),
                    transitions=True,
                    **options,
                )
            )

        shop = opened("shop", shop_agent(), hold_unknown=True)
        billing = opened("billing", billing_agent())
        boxes = [
            shop, billing, opened("ledger", ledger_agent()), opened("mailer"),
            opened("coder", coder_agent()),
        ]  # fmt: skip
        found = _talk(shop, boxes, clock)
        found |= _trouble(shop, boxes, clock)
        _work(boxes, clock)
        _hold_and_schedule(shop)
        _leave_alone(shop, clock)
        _on_this_clock(shop, billing)
    return found


def _hold_and_schedule(shop: Postbox) -> None:
    """Send more than a session may, and at dates; the last schedule cannot send."""
    shop.limits.set("session", "imports", messages=2, overflow="hold")
    shop.session("imports").send_many([("warehouse", n) for n in range(3)])
    shop.schedules.add(
        "nightly", cron="30 2 * * *", timezone="Europe/Zurich", to="billing", body={"report": "day"}
    )
    shop.schedules.add("stocktaking", every="7d", to="warehouse")
    shop.schedules.add("weekly", every="7d", to="billing")
    shop.schedules.pause("weekly")
    shop.channels.create("news", "group", description="What is new")
    shop.channels.get("news").add_many(["billing", "ledger"])
    shop.channels.create("repairs", "broadcast")
    shop.channels.get("repairs").pause("hold")
    with shop.begin() as tx:
        tx.execute(
            "UPDATE _onceward_schedules SET last_error = 'OutboxLimit: 1000000 messages wait'"
            " WHERE name = 'stocktaking'"
        )


def _leave_alone(shop: Postbox, clock: ManualClock) -> None:
    """Open the breaker of the peer that cannot be reached."""
    with shop.begin() as tx:
        tx.execute(
            "UPDATE _onceward_peers SET breaker = 'open', failures = 6, due_at = ?,"
            " last_error = 'Unreachable: connection refused' WHERE name = 'warehouse'",
            (clock.now() + 25_000,),
        )


def _on_this_clock(shop: Postbox, billing: Postbox) -> None:
    """Put the moments of attempts on the manual clock: triggers have the system's alone."""
    with shop.begin() as tx:
        tx.execute(
            "UPDATE _onceward_transitions AS t SET at = 30000 +"
            " (SELECT max(e.at) FROM _onceward_transitions AS e"
            "   WHERE e.id = t.id AND e.seq < t.seq AND e.to_state = 'sent')"
            " WHERE from_state = 'sent' AND to_state = 'pending'"
        )
    with billing.begin() as tx:
        tx.execute(
            "UPDATE _onceward_transitions AS t SET at = 61240 * (SELECT count(*) - 2 FROM"
            " _onceward_transitions AS e WHERE e.id = t.id AND e.seq <= t.seq)"
            " + (SELECT received_at FROM _onceward_inbox AS b WHERE b.id = t.id)"
            " WHERE box = 'inbox' AND from_state = 'pending' AND to_state = 'pending'"
        )


def _settle(boxes: list[Postbox], clock: ManualClock) -> None:
    for _ in range(4):
        for box in boxes:
            box.run_until_idle()
            clock.advance(0.012)


def _talk(shop: Postbox, boxes: list[Postbox], clock: ManualClock) -> dict[str, str]:
    for n in range(40):
        session = shop.session(f"order-{n % 5}")
        session.send("billing", {"id": n, "cents": 1999 + n}, type="invoice.created")
        clock.advance(45)
        if n % 4 == 3:
            _settle(boxes, clock)
    order = shop.session("order-7").send(
        "billing",
        {"id": 77, "cents": 4200, "card": {"number": "4111 1111 1111 1111", "token": "tok_live"},
         "note": EVIL, "lines": [{"sku": "A-1", "count": 2}, {"sku": "B-9", "count": 1}]},
        type="invoice.created", key="order-77", topic="orders.new",
    )  # fmt: skip
    clock.advance(0.04)
    _settle(boxes, clock)
    return {"order": order}


def _trouble(shop: Postbox, boxes: list[Postbox], clock: ManualClock) -> dict[str, str]:
    rejected = [
        shop.session("order-9").send("billing", {"id": n, "cents": -5}, type="invoice.created")
        for n in range(3)
    ]
    failing = shop.session("refunds").send("billing", {"id": 12}, type="refund.wanted")
    _settle(boxes, clock)
    for _ in range(3):
        clock.advance(61)
        _settle(boxes, clock)
    shop.limits.set("session", "*", messages=30, overflow="hold")
    lost = [
        shop.session("stock").send("warehouse", {"n": n}, type="stock.wanted") for n in range(9)
    ]
    late = shop.send("billing", {"id": 99, "cents": 1}, type="invoice.created", delay=3600)
    shop.run_until_idle()
    return {"rejected": rejected[0], "failing": failing, "held": lost[0], "late": late}


def _work(boxes: list[Postbox], clock: ManualClock) -> None:
    shop, coder = boxes[0], boxes[-1]
    chat = shop.session("chat")
    chat.send_many([("coder", "build it"), ("coder", "test it")])
    shop.run_until_idle()
    coder.run_until_idle()
    tickets = coder.mailboxes.ensure("tickets", public=True)
    tickets.send({"ticket": 1})
    tickets.send({"ticket": 2})
    coder.run_until_idle()
    tickets.read("board", limit=1)
    tickets.receive("team")
    clock.advance(1.5)
    for n in range(25):
        shop.session(f"order-{n % 5}").send(
            "billing", {"id": n, "cents": 5}, type="invoice.created"
        )
        clock.advance(3)
    shop.run_until_idle()
    clock.advance(2)


def crowd(folder: Path, agents: int, clock: ManualClock) -> None:
    """Make a home of many agents, each of which has sent a few messages to the next."""
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(agents):
        with Postbox(
            folder / f"agent-{n:04}.db",
            agent=f"agent-{n:04}",
            start=False,
            testing=Controls(clock=clock),
            hold_unknown=True,
        ) as box:
            for m in range(3):
                box.send(f"agent-{(n + 1) % agents:04}", {"n": m}, type="job")


def swollen(path: Path, messages: int) -> None:
    """
    Make a file with many messages in both boxes, most of them handled long ago.

    Rows are copied by SQL, triggers and all; nothing opens the file meanwhile.
    """
    with Postbox(path, agent="big", start=False) as box, Postbox(
        path.with_name("other.db"), agent="other", start=False
    ) as other:  # fmt: skip
        other.send("big", {"n": 0}, type="seed")
        box.send("other", {"n": 0}, type="seed")
        other.run_until_idle()
        box.run_until_idle()
        for message in box.receive_each(timeout=0):
            message.ack()
        other.run_until_idle()
    con = apsw.Connection(str(path))
    con.execute("PRAGMA synchronous = OFF")
    triggers = con.execute(
        "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name GLOB '_onceward_*'"
    ).fetchall()
    with con:
        for name, _ in triggers:
            con.execute(f'DROP TRIGGER "{name}"')
        for table in ("outbox", "inbox", "processed_messages"):
            _copied(con, table, messages)
        con.execute(LANES, (messages,))
        con.execute(
            "UPDATE _onceward_counters SET value = ? WHERE name IN"
            " ('ended_pending', 'acked', 'ended', 'processed')",
            (messages + 1,),
        )
        for _, sql in triggers:
            con.execute(str(sql))
    con.close()


def _copied(con: apsw.Connection, table: str, count: int) -> None:
    name = f"_onceward_{table}"
    [columns] = [
        [str(row[1]) for row in con.execute(f"PRAGMA table_info({name})") if row[1] != "seq"]
    ]
    key = "message_id" if table == "processed_messages" else "id"
    told = {
        key: f"printf('%s-%07x', t.{key}, n.value)",
        "state": "CASE t.state WHEN 'sent' THEN 'acked' ELSE t.state END",
        "due_at": "NULL",
        "ended_at": "coalesce(t.ended_at, t.created_at) + 3 * n.value"
        if table == "outbox"
        else "t.ended_at + 3 * n.value",
        "created_at": "t.created_at + 3 * n.value",
        "received_at": "t.received_at + 3 * n.value",
        "processed_at": "t.processed_at + 3 * n.value",
    }
    values = ", ".join(told.get(column, f"t.{column}") for column in columns)
    con.execute(
        f"{NUMBERS} INSERT INTO {name} ({', '.join(columns)}) SELECT {values}"
        f"  FROM (SELECT * FROM {name} ORDER BY seq LIMIT 1) AS t, numbers AS n",
        (count,),
    )
