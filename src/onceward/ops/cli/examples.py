"""Show for each command one line that a shell can run."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final = {
    "new": """onceward new my_agent
onceward new my_agent --pydantic-ai
onceward new my_agent --langgraph""",
    "completion": "onceward completion bash",
    "init": "onceward init shop",
    "send": """onceward send billing '{"id": 7}' --type invoice.created --key invoice-7
cat invoice.json | onceward send billing""",
    "reply": """onceward reply 0199f0c2 '{"ok": true}'""",
    "cancel": """onceward cancel 0199f0c2 --reason 'wrong amount' --wait 5s
onceward cancel --to billing --type invoice.created --yes""",
    "receive": "onceward receive --type invoice.created --wait 5s",
    "poll": "onceward poll --topic 'build.#' --limit 10",
    "tail": """onceward tail -n 20 --session run-42
onceward tail --follow --transitions""",
    "expire": "onceward expire --session run-42",
    "channel create": "onceward channel create news pubsub --description 'build results'",
    "channel ls": "onceward channel ls news",
    "channel show": "onceward channel show news",
    "channel join": "onceward channel join news --role observer",
    "channel leave": "onceward channel leave news",
    "channel add": "onceward channel add news billing audit",
    "channel remove": "onceward channel remove news audit",
    "channel subscribe": "onceward channel subscribe news 'build.#'",
    "channel unsubscribe": "onceward channel unsubscribe news 'build.#'",
    "channel pause": "onceward channel pause news --mode reject",
    "channel resume": "onceward channel resume news",
    "channel drain": "onceward channel drain news",
    "channel close": "onceward channel close news",
    "channel send": "onceward channel send news 'all green' --topic build.done",
    "channel receive": "onceward channel receive news --wait 5s --status received",
    "channel ack": "onceward channel ack news HANDLE completed --detail 'took 3 s'",
    "channel acks": "onceward channel acks news 0199f0c2-7d1e",
    "channel history": "onceward channel history news --since 2h --json",
    "publish": "onceward publish build.done 'all green'",
    "mailbox ensure": "onceward mailbox ensure task.queue --ttl 7d",
    "mailbox ls": "onceward mailbox ls",
    "mailbox send": """onceward mailbox send task.queue '{"page": 1}' --priority urgent""",
    "mailbox read": "onceward mailbox read task.queue lease --name crew --limit 1 --wait 5s",
    "mailbox query": "onceward mailbox query task.queue --sender shop --limit 10",
    "mailbox show": "onceward mailbox show task.queue",
    "mailbox reset": "onceward mailbox reset task.queue lease --name crew --since 2h",
    "mailbox discard": "onceward mailbox discard task.queue 0199f0c2-7d1e",
    "ls": "onceward ls outbox --state pending --peer billing",
    "show": "onceward show 0199f0c2",
    "why": "onceward why 0199f0c2-7d1e",
    "stats": """onceward stats shop.db --json
onceward stats shop.db --watch 2s""",
    "agents ls": "onceward agents ls --search translate",
    "agents register": "onceward agents register --capability translate",
    "agents remove": "onceward agents remove",
    "agents subscribe": "onceward agents subscribe 'build.#'",
    "agents unsubscribe": "onceward agents unsubscribe 'build.#'",
    "nats setup": """onceward nats setup --keeper shop --user billing
onceward nats setup --keeper shop --url nats://broker:4222 --apply""",
    "peers ls": "onceward peers ls",
    "peers add": "onceward peers add billing file:/srv/billing/billing.db",
    "peers allow": "onceward peers allow billing --type 'invoice.#'",
    "peers ping": "onceward peers ping bob",
    "peers remove": "onceward peers remove billing",
    "peers reset": "onceward peers reset billing",
    "peers subscribe": "onceward peers subscribe billing 'build.#'",
    "peers unsubscribe": "onceward peers unsubscribe billing 'build.#'",
    "keys new": "onceward keys new bob",
    "keys add": """cat secret.txt | onceward keys add alice
onceward keys add alice whsec_rqzWWFhWXkyYhsZoIqvBbxXjS8qXPMvk""",
    "keys ls": "onceward keys ls --json",
    "keys rotate": """onceward keys rotate bob
onceward keys rotate bob --finish""",
    "keys remove": "onceward keys remove bob",
    "dead ls": "onceward dead ls --reason rejected --older-than 7d",
    "dead show": "onceward dead show 0199f0c2",
    "dead replay": """onceward dead replay 0199f0c2
onceward dead replay --peer billing --rate 10 --yes""",
    "dead discard": """onceward dead discard --type invoice.created --dry-run
onceward dead discard --older-than 30d --yes""",
    "sessions runs": "onceward sessions runs --state open",
    "sessions run": "onceward sessions run 0199f0c2 --json",
    "sessions abort": "onceward sessions abort 0199f0c2 --cause 'wrong branch'",
    "sessions stats": "onceward sessions stats shop.db",
    "sessions ls": "onceward sessions ls chat-7",
    "sessions set": "onceward sessions set chat-7 --mode collect --debounce 2s",
    "sessions reorder": "onceward sessions reorder chat-7 0199f0c2",
    "sessions discard": "onceward sessions discard chat-7 0199f0c2",
    "sessions pause": "onceward sessions pause chat-7",
    "sessions resume": "onceward sessions resume chat-7",
    "sessions remove": "onceward sessions remove 'chat-*'",
    "history": "onceward history --recipient billing --state dead --since 2h",
    "thread": "onceward thread 0199f0c2",
    "search": "onceward search invoice 'over*' --limit 10",
    "schedules ls": "onceward schedules ls",
    "schedules add": "onceward schedules add nightly --cron '0 3 * * *' --timezone Europe/Zurich",
    "schedules remove": "onceward schedules remove nightly",
    "schedules pause": "onceward schedules pause nightly",
    "schedules resume": "onceward schedules resume nightly",
    "schedules run": "onceward schedules run nightly",
    "limits ls": "onceward limits ls",
    "limits set": """onceward limits set session '*' --messages 1000 --overflow hold
onceward limits set send --rate 50 --burst 200
onceward limits set file --size 1000000000""",
    "limits remove": "onceward limits remove session '*'",
    "limits fullness": "onceward limits fullness",
    "limits drops": "onceward limits drops --limit 20",
    "work": """onceward work shop.agent:agent --reload
 onceward work shop.db shop.agent:agent --processes 2
onceward work shop.db shop.agent:agent --metrics 127.0.0.1:9464""",
    "relay": "onceward relay shop.db --once",
    "serve": "onceward serve /srv/agents --listen https://0.0.0.0:8443 --certfile home.pem",
    "metrics": "onceward metrics /srv/agents",
    "top": """onceward top
onceward top /srv/agents --sort oldest --once""",
    "mcp": """onceward mcp --agent alice --peers billing,audit --limit 30/m
onceward mcp alice.db --http 127.0.0.1:8425 --read-only""",
    "inspect": """onceward inspect /srv/agents
onceward inspect shop.db billing.db --write --redact 'card|iban'""",
    "pause": "onceward pause --agent shop",
    "resume": "onceward resume --agent shop",
    "migrate": "onceward migrate shop.db --dry-run",
    "check": "onceward check shop.db billing.db",
    "backup": "onceward backup shop.db /backups/shop.backup",
    "restore": "onceward restore shop.db /backups/shop.backup --dry-run",
    "doctor": """onceward doctor *.db
onceward doctor shop.db --repair --dry-run""",
    "sql": "onceward sql shop.db 'SELECT state, count(*) FROM outbox GROUP BY state'",
    "ship": """onceward ship '/srv/agents/**/*.db' --to s3://logs/fleet
onceward ship /srv/agents --to /var/log/fleet --every 1m""",
    "fleet demo": "onceward fleet demo --size 2 --home /tmp/fleet",
    "fleet reconcile": "onceward fleet reconcile '/srv/agents/**/*.db' --out /var/reports/today",
    "fleet metrics": "onceward fleet metrics '/srv/agents/**/*.db' --out /var/metrics",
    "fleet threads": "onceward fleet threads '/srv/agents/**/*.db' --out /var/threads",
    "fleet graph": "onceward fleet graph /var/reports/today",
    "fleet replay": "onceward fleet replay '/srv/agents/**/*.db' --where \"reason = 'rejected'\""
    " --out /var/replays",
    "fleet export": "onceward fleet export '/srv/agents/**/*.db' --out /srv/export --redact body",
    "demo": """onceward demo --seconds 5 --kills 2
onceward demo --agents""",
}
"""Lines by the full name of their command, which the tests parse."""


def example(name: str) -> str:
    """Return the examples of a command as the last paragraphs of its help text."""
    return "\n\n".join(f"Example: {line}" for line in EXAMPLES.get(name, "").splitlines())
