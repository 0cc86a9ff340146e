"""Write the pages of stored data: the frame with its JSON Schema, and the tables."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import apsw
import readers
from pieces import code, flow, page, table
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from onceward import Postbox
from onceward.message import wire
from onceward.message.clock import SystemClock
from onceward.testing import Controls
from onceward.transports import Frame

MEANING = {
    "specversion": "CloudEvents version",
    "id": "message id; unique per `source`",
    "source": "sending agent, as `urn:onceward:NAME`",
    "type": "message type; it selects the handler",
    "recipient": "agent that the message is for",
    "time": "when it was sent, by the sender's clock",
    "session": "conversation that it belongs to",
    "topic": "topic that it was published under",
    "priority": "0 critical, 1 urgent, 2 normal, 3 low, 4 background",
    "partitionkey": "ordering key: the lane, if it is not the session",
    "correlationid": "id of the first message of the conversation",
    "causationid": "id of the message whose handler sent this one",
    "hops": "number of messages that led to this one; 0 if no handler sent it",
    "inreplyto": "id of the request that this message answers",
    "replyto": "agent that receives the reply, if not the sender",
    "channel": "channel that it was sent through",
    "kind": "its role in the conversation: command, query, response and so on",
    "mailbox": "recipient's mailbox that it is for",
    "mailboxkey": "its key, if the mailbox keeps only the newest message of each key",
    "pool": "name of the pool to which it was sent, and which the recipient serves",
    "answerby": "when the query that it answers expires; a later reply is late",
    "replyschema": "JSON schema of the expected reply, as text",
    "expirytime": "when the message expires",
    "idempotencykey": "the sender's idempotency key",
    "chosenid": "true if the sender's program chose the id: the recipient keeps it permanently",
    "subject": "subject of the message; onceward does not read it",
    "dataref": "digest of a body that is a file of the home, as an RFC 6920 name",
    "dataschema": "URI of the body's schema; onceward does not read it",
    "datacontenttype": "media type of the body; `version` in it is the version of its class",
    "data": "the body as JSON",
    "data_base64": "the body as base64 bytes, instead of `data`",
}
"""Every attribute of a frame, for its page and for its JSON Schema."""

DIALECT = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "urn:onceward:schema:frame:1",
}
BOTH_BODIES = {
    "required": ["data", "data_base64"],
    "properties": {"data": {"not": {"type": "null"}}, "data_base64": {"type": "string"}},
}
EXTENSION = {
    "description": "an extension attribute",
    "anyOf": [
        {"type": "string", "pattern": "^[^\\u0000-\\u001f\\u007f-\\u009f]*$"},
        {"type": "boolean"},
        {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
        {"type": "null"},
    ],
}


def frame_page() -> str:
    """Return the page of the frame, with a real one."""
    schema = json.loads(frame_schema())
    rows = [("attribute", "meaning", "may be")]
    for name, given in schema["properties"].items():
        rows.append(
            (
                code(name) + (" (required)" if name in schema["required"] else ""),
                MEANING[name],
                _kind(given),
            )
        )
    return page(
        "Frame",
        readers.docs(readers.find(Frame)),
        f"```json\n{json.dumps(json.loads(_example()), indent=2)}\n```",
        table(*rows),
        flow(
            "Every other attribute is an extension (`headers=` of `send`): its name 1 to 20 "
            "lower-case letters and digits, its value a",
            "string, a boolean or a 32-bit integer. An attribute without a value is omitted.",
            "The same rules as [JSON Schema](../../schema/frame.schema.json).",
        ),
    )


class _ThatMorning(SystemClock):
    def now(self) -> int:
        return 1_752_000_000_000


def _example() -> str:
    with (
        tempfile.TemporaryDirectory() as folder,
        Postbox(
            f"{folder}/shop.db",
            agent="shop",
            start=False,
            hold_unknown=True,
            testing=Controls(clock=_ThatMorning(), ids=lambda: EXAMPLE_ID),
        ) as shop,
    ):
        shop.session("run-42").send(
            "billing", {"id": 7, "cents": 1999}, type="invoice.created", key="invoice-7"
        )
        return shop.history().messages[0].text


EXAMPLE_ID = "0197eba3-4a00-7c3e-8f00-1b2c3d4e5f60"


def _kind(given: dict[str, Any]) -> str:
    plain = next((kind for kind in given.get("anyOf", []) if kind != {"type": "null"}), given)
    if "const" in plain:
        return code(str(plain["const"]))
    if "type" not in plain:
        return "any JSON value"
    limits = [
        f"{sign} {plain[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in plain
    ]
    if "maxLength" in plain:
        limits.append(f"at most {plain['maxLength']} characters")
    kind = "time as RFC 3339 text" if plain.get("format") == "date-time" else plain["type"]
    return ", ".join([kind, *limits])


def frame_schema() -> str:
    """Return the frame as JSON Schema: the model's own, with what its validator adds."""
    schema = Frame.model_json_schema()
    for name, given in schema["properties"].items():
        given.pop("title", None)
        given["description"] = MEANING[name].replace("`", "")
        if name not in (*schema["required"], "data"):
            schema["properties"][name] = _or_null(given)
    known = "|".join(sorted(schema["properties"]))
    schema |= {
        "title": "onceward frame",
        "description": "One message as it is transported: CloudEvents 1.0 in JSON.",
        "patternProperties": {f"^(?!(?:{known})$)[a-z0-9]{{1,20}}$": EXTENSION},
        "additionalProperties": False,
        "not": BOTH_BODIES,
    }
    return json.dumps(DIALECT | schema, indent=2) + "\n"


def _or_null(given: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an attribute or null, which CloudEvents take for an unset attribute."""
    if "anyOf" in given:
        return given
    notes = {name: given[name] for name in ("description", "default") if name in given}
    kinds = [{name: value for name, value in given.items() if name not in notes}, {"type": "null"}]
    return notes | {"anyOf": kinds}


def wire_schema() -> str:
    """Return the bodies that travel over networks as JSON Schema: the codec's own models."""
    models: list[tuple[type[BaseModel], Literal["validation"]]] = [
        (wire._ParcelEvent, "validation"),
        (wire._AnswerEvent, "validation"),
    ]
    _, found = models_json_schema(models, ref_template="#/$defs/{model}")
    named = json.dumps(found["$defs"]).replace('"_', '"').replace("$defs/_", "$defs/")
    defs = json.loads(named)
    for each in defs.values():
        each.pop("description", None)
        _untitle(each)
    batch = {
        "title": "parcel",
        "type": "array",
        "prefixItems": [{"$ref": "#/$defs/ParcelEvent"}],
        "items": {"description": "a frame, see frame.schema.json", "type": "object"},
        "minItems": 1,
    }
    schema = {
        "$schema": DIALECT["$schema"],
        "$id": "urn:onceward:schema:wire:1",
        "title": "onceward parcel or answer",
        "description": "The body of a parcel (a CloudEvents batch) or of its answer.",
        "oneOf": [batch, {"$ref": "#/$defs/AnswerEvent"}],
        "$defs": defs,
    }
    return json.dumps(schema, indent=2) + "\n"


def _untitle(schema: dict[str, Any]) -> None:
    """Drop the titles that repeat the names of classes and fields."""
    schema.pop("title", None)
    for each in schema.get("properties", {}).values():
        each.pop("title", None)


# -- the tables -------------------------------------------------------------------------------


def schema_page(meanings: dict[str, dict[str, str]]) -> str:
    """Return the page of the schema: the given meanings, types and defaults from a real file."""
    parts = [
        flow(
            "The views are the public contract and only ever gain columns. Tables may "
            "change with any release.",
            "How to read them: [inspect with SQL](../how-to/inspect-with-sql.md).",
            "How to write: [send from SQL](../how-to/send-from-sql.md).",
        )
    ]
    with (
        tempfile.TemporaryDirectory() as folder,
        Postbox(Path(folder) / "a.db", agent="a", start=False) as box,
    ):
        parts += _relations(
            box.file.path, meanings, ("view", "Views", _view), ("table", "Tables", _stored)
        )
    return page("Schema", *parts)


def directory_page(meanings: dict[str, dict[str, str]]) -> str:
    """Return the page of a home's directory, as that of the schema."""
    told = flow(
        "A home's `directory.db` lists its agents, channels, mailboxes and subscriptions.",
        "It holds no messages, and its tables may change with any release: use `box.channels`, "
        "`box.mailboxes` and `box.agents`,",
        "or the commands of these names.",
    )
    with (
        tempfile.TemporaryDirectory() as folder,
        Postbox(Path(folder) / "a.db", agent="a", start=False) as box,
    ):
        box.agents.register()
        return page(
            "Directory",
            told,
            *_relations(Path(folder) / "directory.db", meanings, ("table", "Tables", _stored)),
        )


def _relations(
    path: Path, meanings: dict[str, dict[str, str]], *kinds: tuple[str, str, Callable[..., str]]
) -> list[str]:
    parts = []
    con = apsw.Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    for kind, title, draw in kinds:
        parts.append(f"## {title}")
        parts += [
            f"### {name}\n\n{meanings[name]['']}\n\n{draw(con, name, meanings[name])}"
            for name in relations(con, kind)
        ]
    con.close()
    return parts


def _view(con: apsw.Connection, name: str, told: dict[str, str]) -> str:
    return table(
        ("column", "meaning"),
        *((code(column[0]), told[column[0]]) for column in columns(con, name)),
    )


def _stored(con: apsw.Connection, name: str, told: dict[str, str]) -> str:
    rows = [(code(column), _sql_type(*rest), told[column]) for column, *rest in columns(con, name)]
    return table(("column", "type", "meaning"), *rows)


def _sql_type(kind: str, must: int, given: str | None, key: int) -> str:
    if key:
        return f"{kind} key"
    if must and given is None:
        return kind
    return f"{kind} = {given}" if given is not None else f"{kind} or NULL"


def columns(con: apsw.Connection, name: str) -> list[tuple[Any, ...]]:
    """Return name, type, whether it must be given, default and key of every column."""
    return con.execute(
        'SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)', (name,)
    ).fetchall()


def relations(con: apsw.Connection, kind: str) -> list[str]:
    """Return the names of all tables or views of a file, SQLite's own left out."""
    sql = (
        "SELECT name FROM sqlite_schema WHERE type = ? AND name NOT LIKE 'sqlite~_%' ESCAPE "
        "'~' ORDER BY rowid"
    )
    return [str(name) for (name,) in con.execute(sql, (kind,))]


def described(text: str) -> dict[str, dict[str, str]]:
    """Return the meanings in schema/README.md by table and column; the table's own is under ''."""
    found: dict[str, dict[str, str]] = {}
    for part in re.split(r"^### ", text.replace("../docs/reference/", ""), flags=re.MULTILINE)[1:]:
        name, _, rest = part.partition("\n")
        listed = dict(re.findall(r"^- `(\w+)`: (.+)\.$", rest, flags=re.MULTILINE))
        found[name.strip()] = {"": rest.strip().partition("\n")[0]} | listed
    return found
