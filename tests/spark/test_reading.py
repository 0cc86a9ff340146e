"""The tables of a fleet, as Spark reads them."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import apsw
import pytest
from tests.fleet.planted import plant

from onceward import Postbox
from onceward.fleet.columns import tables, views
from onceward.fleet.evidence import VIEWS as VIEWS_OF_MESSAGES
from onceward.fleet.opening import FILE_STATES
from onceward.fleet.spark import read
from onceward.fleet.states import DIFFERING
from onceward.message.names import DIRECTORY

pytest.importorskip("pyspark", reason="pip install 'onceward[spark]' brings it")
if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Made = Callable[..., Path]


def view(path: Path, name: str) -> list[dict[str, Any]]:
    """Return a view's rows as the agent itself sees them, its times as Spark's."""
    with Postbox(path, start=False) as box, box.begin() as tx:
        names = [
            column for (column,) in tx.execute("SELECT name FROM pragma_table_info(?)", (name,))
        ]
        return [dict(zip(names, row, strict=True)) for row in tx.execute(f"SELECT * FROM {name}")]


def rows(frame: DataFrame, *, times: bool = False) -> list[dict[str, Any]]:
    """Return a frame's rows in a stable order, their times as integer milliseconds."""
    found = [row.asDict() for row in frame.collect()]
    if not times:
        found = [{name: millis(value) for name, value in row.items()} for row in found]
    return sorted(found, key=repr)


def millis(value: Any) -> Any:
    """Return a time as milliseconds since 1970, and everything else as it is."""
    if not isinstance(value, dt.datetime):
        return value
    return round(value.astimezone(dt.UTC).timestamp() * 1000)


def large(folder: Path) -> Path:
    """Return a file of twenty messages, each on several pages."""
    path = folder / "alice.db"
    with Postbox(path, agent="alice", start=False, hold_unknown=True) as alice:
        alice.session().send_many([("bob", {"text": "x" * 50_000})] * 20, type="note")
    return path


def lead_astray(path: Path) -> None:
    """Let a page of the last frame lead to one that the file does not have."""
    data = bytearray(path.read_bytes())
    pages = range(0, len(data), 4096)
    last = max(at for at in pages if data[at + 4 : at + 4096] == b"x" * 4092)
    data[last : last + 4] = b"\x7f\xff\xff\xff"
    path.write_bytes(data)


BODY = ("body", True)
"""The view's body beside a frame: the table has another one, see the next tests."""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an agent's file, not to be changed, in which every view has a row."""
    return plant(tmp_path_factory.mktemp("planted") / "carol.db")


def without_own(found: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave the source's own columns away."""
    return sorted(
        ({name: value for name, value in row.items() if not name.startswith("_")} for row in found),
        key=repr,
    )


@pytest.mark.parametrize("name", views())
def test_a_table_is_its_view_in_every_file(
    spark: SparkSession, mail: Path, planted: Path, name: str
) -> None:
    """
    Every column and every row of each public view arrives, with the type that it has there.

    ``frame`` is read on request only, and so is ``body``: of a frame as JSON text, else as it is.
    """
    expected = [
        {column: value for column, value in row.items() if (column, "frame" in row) != BODY}
        for path in [*mail.glob("*.db"), planted]
        if path.name != DIRECTORY
        for row in view(path, views()[name])
    ]

    assert expected, f"no file has a row of {views()[name]}: let `planted` make one"
    contents = [column for column in ("frame", "body") if column in expected[0]]
    columns = ",".join(["*", *contents])
    paths = [str(mail), str(planted)]
    assert sorted(expected, key=repr) == without_own(
        rows(read(spark, paths, name, columns=columns))
    )


def test_every_row_says_where_it_is_from(spark: SparkSession, mail: Path) -> None:
    """File, agent and number are enough to find the row again."""
    found = rows(read(spark, str(mail), "outbox", columns="_db,_agent,_seq,seq,sender"))

    assert 5 == len(found)
    assert [
        {
            "_db": str(mail / "alice.db"),
            "_agent": "alice",
            "_seq": seq,
            "seq": seq,
            "sender": "alice",
        }
        for seq in range(1, 6)
    ] == found


def test_times_are_times(spark: SparkSession, mail: Path) -> None:
    """Columns that end in ``_at`` are timestamps in UTC, so Spark's own functions take them."""
    frame = read(spark, str(mail), "outbox")
    kinds = dict(frame.dtypes)

    assert {"timestamp"} == {kinds[name] for name in kinds if name.endswith("_at")}
    assert {"bigint"} == {kinds[name] for name in ("_seq", "seq", "attempts")}
    assert (
        5
        == frame.where(
            "created_at between current_timestamp() - interval 1 hour and current_timestamp()"
        ).count()
    )


def test_bodies_are_read_on_request(spark: SparkSession, mail: Path) -> None:
    """``body`` is the sent JSON text, ``body_bytes`` the sent bytes; neither is read unasked."""
    found = rows(read(spark, str(mail), "outbox", columns="body,body_bytes", where="seq IN (1, 5)"))

    assert [
        {"body": '{"number":0}', "body_bytes": None},
        {"body": None, "body_bytes": b"\x00bytes"},
    ] == found
    assert not {"frame", "body", "body_bytes"} & set(read(spark, str(mail), "outbox").columns)
    assert "frame" in read(spark, str(mail), "outbox", frame="text").columns


def test_a_frame_is_a_variant_by_sparks_own_function(spark: SparkSession, mail: Path) -> None:
    """The frame's text needs no schema to be asked."""
    frame = read(spark, str(mail), "inbox", columns="id,frame").selectExpr(
        "id", "parse_json(frame) AS frame"
    )

    assert ["alice"] == [
        row.source.removeprefix("urn:onceward:")
        for row in frame.selectExpr("frame:source::string AS source").distinct().collect()
    ]


def test_a_condition_is_asked_of_the_file(spark: SparkSession, mail: Path) -> None:
    """``where`` is SQLite's, on the view's own columns."""
    assert 1 == read(spark, str(mail), "outbox", where="key = 'last'").count()
    assert (
        2
        == read(
            spark, str(mail), "outbox", where="seq > 2 AND key IS NULL -- and nothing else"
        ).count()
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": "outbx"}, "there is no table"),
        ({"colums": "id"}, "there is no option 'colums'"),
        ({"columns": "id,idd"}, "has no column 'idd'"),
        ({"where": "nobody = 1"}, "no such column"),
        ({"where": "1); DROP TABLE _onceward_outbox; --"}, "without a semicolon"),
        ({"where": "seq = 1) OR (seq = 2"}, "is not a condition on outbox"),
        ({"mode": "SLOPPY"}, "is not one of"),
        ({"frame": "xml"}, "is not one of text, json, variant"),
        ({"table": "peers", "frame": "variant"}, "has no frames"),
        ({"maxPartitionBytes": "many"}, "does not accept 'many'"),
        ({"taskBytes": "1"}, "there is no option 'taskbytes'"),
        ({"mode": "INSIST"}, "is not one of DROPMALFORMED, PERMISSIVE, FAILFAST"),
    ],
)
def test_a_wrong_option_is_named(
    spark: SparkSession, mail: Path, options: dict[str, str], said: str
) -> None:
    """
    A misspelt option is refused before anything is read.

    It would otherwise be forgotten silently. By the format, Spark puts its condition before the
    sentence; by ``read`` it is the whole message. Neither shows a traceback of Python.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra

    given = {"table": "outbox"} | options
    with pytest.raises(AnalysisException, match=said) as by_format:
        spark.read.format("onceward").options(**given).load(str(mail)).count()
    with pytest.raises(AnalysisException, match=said) as by_call:
        read(spark, str(mail), given.pop("table"), **given)
    sentence = str(by_call.value)

    assert 1 == len(sentence.splitlines())
    assert "Traceback" not in str(by_format.value)
    assert f".InvalidOption: {sentence}" in str(by_format.value)


def test_a_stream_with_a_wrong_option_fails_with_its_sentence(
    spark: SparkSession, mail: Path
) -> None:
    """Spark's own error, which hides those of a reader's construction, does not take its place."""
    from pyspark.errors import StreamingQueryException  # noqa: PLC0415 - an extra

    frame = spark.readStream.format("onceward").option("table", "peers").load(str(mail))
    query = frame.writeStream.format("noop").start()
    with pytest.raises(StreamingQueryException, match="table peers cannot be followed") as found:
        query.awaitTermination(60)

    assert "Traceback" not in str(found.value)


def test_a_schema_of_the_users_own_chooses_columns(spark: SparkSession, mail: Path) -> None:
    """``schema(...)`` is checked against the table's columns and types."""
    reader = spark.read.format("onceward").option("table", "outbox")

    assert ["id", "state"] == reader.schema("id STRING, state STRING").load(str(mail)).columns
    with pytest.raises(Exception, match="no column seq of type string"):
        reader.schema("seq STRING").load(str(mail)).count()


def test_no_column_at_all_can_be_counted(spark: SparkSession, mail: Path) -> None:
    """An empty schema has as many rows as any other."""
    from pyspark.sql.types import StructType  # noqa: PLC0415 - an extra

    assert (
        5
        == spark.read.format("onceward")
        .option("table", "outbox")
        .schema(StructType())
        .load(str(mail))
        .count()
    )


def test_a_folder_without_files_is_empty(spark: SparkSession, tmp_path: Path) -> None:
    """A folder that is there reads as nothing, with the table's columns."""
    frame = read(spark, str(tmp_path), "inbox")

    assert (0, "_db") == (frame.count(), frame.columns[0])


def test_paths_that_name_nothing_fail(spark: SparkSession, mail: Path) -> None:
    """
    A path fails where it is named, a glob where it is read, as no file can be told from a typo.

    So does a list with one such path.
    """
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra

    with pytest.raises(AnalysisException, match="Path does not exist") as caught:
        read(spark, f"{mail}/gone.db", "outbox")
    assert "PATH_NOT_FOUND" == caught.value.getCondition()
    assert 1 == str(caught.value).count("PATH_NOT_FOUND")
    reader = spark.read.format("onceward").option("table", "outbox")
    for missing in (f"{mail}/gone.db", [str(mail), f"{mail}/gone"]):
        with pytest.raises(AnalysisException, match=rf"PATH_NOT_FOUND\].*{mail}/gone"):
            reader.load(missing)
    for unmatched in (f"{mail}/*.sqlite", f"{mail}/{{dave,eve}}.db"):
        with pytest.raises(AnalysisException, match=r"PATH_NOT_FOUND\] Path does not exist"):
            reader.load(unmatched).count()


def test_a_table_of_the_catalog_reads_the_fleet(spark: SparkSession, mail: Path) -> None:
    """
    Its options are kept with it, also those of the location; dropping it leaves the files.

    A misspelt one is refused. Columns of its own are refused when it is read, as Spark then tells
    the source nothing of its options.
    """
    create = "CREATE TABLE {} USING onceward OPTIONS ({}) {}"
    spark.sql(create.format("sent", f"table 'outbox', path '{mail}/*.db', columns 'id,frame'", ""))
    spark.sql(create.format("came", "table 'inbox'", f"LOCATION '{mail}' TBLPROPERTIES ('x' 'y')"))
    spark.sql(create.format("own (id STRING)", f"path '{mail}'", ""))

    assert (5, 3) == tuple(spark.table(name).count() for name in ("sent", "came"))
    assert ["id", "frame"] == spark.table("sent").columns
    both = "SELECT state FROM came JOIN sent USING (id) WHERE state = 'processed'"
    assert 3 == spark.sql(both).count()
    with pytest.raises(Exception, match="no option 'tabel'"):
        spark.sql(create.format("typo", f"tabel 'outbox', path '{mail}'", ""))
    with pytest.raises(Exception, match="created with columns"):
        spark.table("own").count()
    for name in ("sent", "came", "own"):
        spark.sql(f"DROP TABLE {name}")
    assert 5 == read(spark, str(mail), "outbox").count()


def test_files_are_chosen_by_their_names(spark: SparkSession, mail: Path) -> None:
    """``pathGlobFilter`` leaves files out by name, in a folder and behind a glob."""
    for path in (str(mail), f"{mail}/*.db"):
        found = read(spark, path, "agents", pathGlobFilter="a*.db")
        assert ["alice"] == [row["agent"] for row in found.collect()]


def test_a_table_that_a_file_does_not_have_yet_is_empty(spark: SparkSession, mail: Path) -> None:
    """Files of before a table's migration have none of its rows; that is not an error."""
    assert 0 == read(spark, str(mail), "runs", mode="FAILFAST").count()


def test_columns_that_an_older_file_lacks_are_null(spark: SparkSession, box: Made) -> None:
    """Views only gain columns: what a file does not know yet is unknown in Spark."""
    path = box("old", 2)
    with Postbox(path, start=False) as old, old.begin() as tx:
        [(sql,)] = tx.execute("SELECT sql FROM sqlite_schema WHERE name = 'onceward_outbox'")
        tx.execute("DROP VIEW onceward_outbox")
        tx.execute(str(sql).replace("o.reason, o.frame", "o.frame").replace("o.key, ", ""))

    assert [{"id": True, "key": None, "reason": None}] * 2 == [
        {"id": bool(row["id"]), "key": row["key"], "reason": row["reason"]}
        for row in rows(read(spark, str(path), "outbox", columns="id,key,reason", mode="FAILFAST"))
    ]


@pytest.mark.parametrize("snapshot", [True, False])
def test_a_large_file_is_cut_and_nothing_is_lost(
    spark: SparkSession, box: Made, snapshot: bool
) -> None:
    """
    Slices, batches and tasks of any size give each row once.

    As of one moment, a file is one task.
    """
    path = box("alice", 2500)
    frame = read(
        spark,
        str(path),
        "outbox",
        columns="_seq",
        maxPartitionBytes="100k",
        minPartitionNum=1,
        batchRows=100,
        snapshot=snapshot,
    )

    assert list(range(1, 2501)) == sorted(row[0] for row in frame.collect())
    assert (frame.rdd.getNumPartitions() == 1) is snapshot


def test_agents_tell_whose_files_there_are(spark: SparkSession, mail: Path) -> None:
    """One row for each file, with its numbers."""
    found = {row["agent"]: row for row in rows(read(spark, str(mail), "agents"))}

    assert ["alice", "bob"] == sorted(found)
    assert (5, 1) == (found["alice"]["enqueued"], found["alice"]["pending"])
    assert (4, 3, 1) == tuple(
        found["bob"][name] for name in ("received", "processed", "dead_letters")
    )


def test_evidence_is_all_boxes_of_a_file_at_one_moment(spark: SparkSession, mail: Path) -> None:
    """One scan holds what the five tables hold, in numbers, and a row for each file."""
    found = rows(read(spark, str(mail), "evidence"))
    counts = Counter(row["side"] for row in found)

    assert {name: read(spark, str(mail), name).count() for name in VIEWS_OF_MESSAGES} == {
        "outbox": counts[1],
        "inbox": counts[3],
        "processed": counts[4],
        "dead_letters": counts[2] + counts[5],
        "differing_messages": counts[DIFFERING],
    }
    assert [] == [row for row in found if row["id"] is None]
    assert {str(path): "read" for path in mail.glob("[ab]*.db")} == {
        row["id"]: FILE_STATES[row["state"] - 1] for row in found if row["side"] == 0
    }


@pytest.mark.broken("a page of a frame leads nowhere")
def test_counting_reads_no_frames(spark: SparkSession, tmp_path: Path) -> None:
    """Rows are counted where a frame cannot be read; frames are read only if they are named."""
    path = large(tmp_path)
    lead_astray(path)

    assert 20 == read(spark, str(path), "outbox").count()
    assert 0 == read(spark, str(path), "outbox", frame="text").count()


@pytest.mark.broken("a page of a frame leads nowhere")
@pytest.mark.parametrize(
    "cut",
    [{}, {"batchRows": 4}, {"maxPartitionBytes": 100_000, "minPartitionNum": 1, "batchRows": 4}],
)
def test_a_file_is_read_whole_or_not_at_all(
    spark: SparkSession, box: Made, tmp_path: Path, cut: dict[str, int]
) -> None:
    """
    Rows before the damage are delivered with mode PERMISSIVE only.

    It is so for a file in one task and for one in several. ``quarantine`` lists it unasked.
    """
    path = large(tmp_path)
    lead_astray(path)
    box("carol", 3)

    def found(mode: str) -> dict[str, int]:
        frame = read(spark, str(tmp_path), "outbox", columns="frame,_agent", mode=mode, **cut)
        return {row["_agent"]: row["count"] for row in frame.groupBy("_agent").count().collect()}

    assert {"carol": 3} == found("DROPMALFORMED")
    assert 19 == found("PERMISSIVE")["alice"]
    with pytest.raises(Exception, match=r"alice\.db: corrupt"):
        found("FAILFAST")
    assert [(str(path), "corrupt")] == [
        (row["path"], row["reason"]) for row in read(spark, str(tmp_path), "quarantine").collect()
    ]


def test_a_file_that_breaks_between_its_slices_fails_the_job(box: Made) -> None:
    """Other tasks may have delivered rows of it: it can be left out no more."""
    from onceward.fleet.opening import Unreadable  # noqa: PLC0415 - with what needs pyarrow
    from onceward.fleet.plan import Slice  # noqa: PLC0415 - as above
    from onceward.fleet.rows import Wanted  # noqa: PLC0415 - as above
    from onceward.fleet.spark.options import Options  # noqa: PLC0415 - as above
    from onceward.fleet.spark.reader import read as read_slices  # noqa: PLC0415 - as above

    path = box("alice", 4)
    slices = [Slice(str(path), 0, 2), Slice(str(path), 2)]
    path.write_bytes(b"torn")
    options = Options.of({"path": str(path)})

    with pytest.raises(Unreadable, match="too large for one task"):
        list(read_slices(options, Wanted({"id": "string"}), slices))
    assert [] == list(
        read_slices(replace(options, mode="PERMISSIVE"), Wanted({"id": "string"}), slices)
    )


@pytest.mark.broken("views of another version")
def test_files_of_other_versions_are_in_quarantine(
    spark: SparkSession, box: Made, tmp_path: Path
) -> None:
    """A file without our views is listed as older or newer, by its schema's number."""
    for name, version in (("old", 0), ("new", 99)):
        with Postbox(box(name, 1), start=False) as other, other.begin() as tx:
            tx.execute("DROP VIEW onceward_outbox")
            tx.execute("UPDATE _onceward_migrations SET version = ?", (version,))

    assert {"old.db": "older", "new.db": "newer"} == {
        Path(row["path"]).name: row["reason"]
        for row in read(spark, str(tmp_path), "quarantine").collect()
    }


def test_bad_files_are_left_out_and_counted(spark: SparkSession, box: Made, tmp_path: Path) -> None:
    """One bad file never fails a job: quarantine and evidence hold it, with its reason."""
    box("alice", 3)
    (tmp_path / "empty.db").touch()
    (tmp_path / "notes.db").write_text("buy milk\n" * 500)

    assert 3 == read(spark, str(tmp_path), "outbox").count()
    expected = {str(tmp_path / "empty.db"): "empty", str(tmp_path / "notes.db"): "corrupt"}
    assert expected == {
        row.path: row.reason for row in read(spark, str(tmp_path), "quarantine").collect()
    }
    files = read(spark, str(tmp_path), "evidence").where("side = 0 and state > 1")
    assert expected == {row.id: FILE_STATES[row.state - 1] for row in files.collect()}


def test_failfast_insists(spark: SparkSession, box: Made, tmp_path: Path) -> None:
    """A job that cannot do without a file says so, and is told which it was."""
    box("alice", 3)
    (tmp_path / "notes.db").write_text("buy milk\n" * 500)

    for strict in ({"mode": "FAILFAST"}, {"ignoreCorruptFiles": False}):
        with pytest.raises(Exception, match=r"notes\.db: corrupt"):
            read(spark, str(tmp_path), "outbox", **strict).count()


def test_a_file_that_vanishes_is_left_out_or_fails(box: Made) -> None:
    """It was there when the files were listed: ``ignoreMissingFiles`` decides."""
    from onceward.fleet.opening import Unreadable  # noqa: PLC0415 - with what needs pyarrow
    from onceward.fleet.plan import Slice  # noqa: PLC0415 - as above
    from onceward.fleet.rows import Wanted  # noqa: PLC0415 - as above
    from onceward.fleet.spark.options import Options  # noqa: PLC0415 - as above
    from onceward.fleet.spark.reader import read as read_slices  # noqa: PLC0415 - as above

    gone = str(box("alice", 1).with_name("gone.db"))
    options, wanted = Options.of({"path": gone}), Wanted({"id": "string"})

    assert [] == list(read_slices(options, wanted, [Slice(gone)]))
    with pytest.raises(Unreadable, match="vanished"):
        list(read_slices(replace(options, ignore_missing_files=False), wanted, [Slice(gone)]))


def test_live_files_are_read_consistently(spark: SparkSession, box: Made) -> None:
    """While an agent sends, evidence of its file shows each message once, in one state."""
    path = box("alice", 200)
    with Postbox(path, start=False, hold_unknown=True) as live:
        frame = read(spark, str(path), "evidence", columns="id,side")
        seen = []
        for _ in range(3):
            live.session().send_many([("bob", number) for number in range(100)], type="note")
            seen.append((frame.count(), frame.distinct().count()))

    assert [(301, 301), (401, 401), (501, 501)] == seen


def test_filters_are_sparks_and_stay_right(spark: SparkSession, box: Made) -> None:
    """
    One relation scanned with several filters gives each its own rows.

    Unions and self joins are such relations too.
    """
    path = box("alice", 40)
    frame = read(spark, str(path), "outbox", columns="_seq,id")
    low, high = frame.where("_seq <= 10"), frame.where("_seq > 10")

    assert (10, 40, 30) == (low.count(), frame.count(), high.count())
    assert 40 == low.union(high).count()
    assert 5 == low.alias("a").join(frame.where("_seq > 5").alias("b"), "id").count()


def test_all_tables_have_their_own_columns_first() -> None:
    """Every table has file, agent and number in the same place."""
    strangers = {"quarantine"}

    assert [] == [
        name
        for name, table in tables().items()
        if name not in strangers and list(table.columns)[:3] != ["_db", "_agent", "_seq"]
    ]


def test_a_stream_insists_on_what_may_be_read_later(box: Made) -> None:
    """
    A file that is locked now fails the micro-batch; read at once, it is left out.

    A micro-batch without it would skip its rows for ever.
    """
    from onceward.fleet.opening import Unreadable  # noqa: PLC0415 - with what needs pyarrow
    from onceward.fleet.plan import Slice  # noqa: PLC0415 - as above
    from onceward.fleet.rows import Wanted  # noqa: PLC0415 - as above
    from onceward.fleet.spark.options import Options  # noqa: PLC0415 - as above
    from onceward.fleet.spark.reader import read as read_slices  # noqa: PLC0415 - as above

    path = box("alice", 2)
    options = Options.of({"path": str(path), "busyTimeout": "0.01"})
    holder = apsw.Connection(str(path))
    holder.execute("PRAGMA journal_mode = DELETE; BEGIN EXCLUSIVE").fetchall()
    try:
        assert [] == list(read_slices(options, Wanted({"id": "string"}), [Slice(str(path))]))
        with pytest.raises(Unreadable, match="locked"):
            list(
                read_slices(
                    replace(options, ignore_locked_files=False),
                    Wanted({"id": "string"}),
                    [Slice(str(path))],
                )
            )
    finally:
        holder.close()


@pytest.mark.parametrize(
    ("damage", "option"),
    [("vanished", "ignoreMissingFiles"), ("replaced", "ignoreMissingFiles"),
     ("corrupt", "ignoreCorruptFiles")],
)  # fmt: skip
def test_a_stream_passes_over_no_planned_rows_unasked(
    box: Made, tmp_path: Path, damage: str, option: str
) -> None:
    """
    A file that breaks or goes behind the plan fails the micro-batch, which is tried again.

    It may come back as it was, and its rows would never be read. An option leaves it out.
    """
    from onceward.fleet.opening import Unreadable  # noqa: PLC0415 - with what needs pyarrow
    from onceward.fleet.spark.catalog import typed  # noqa: PLC0415 - as above
    from onceward.fleet.spark.options import Options  # noqa: PLC0415 - as above
    from onceward.fleet.spark.stream import StreamReader  # noqa: PLC0415 - as above

    path, kept = box("alice", 2), tmp_path / "kept"
    given = {"path": str(tmp_path), "columns": "id"}

    def stream(**more: str) -> StreamReader:
        options = Options.of(given | more)
        return StreamReader(options, typed(options.named(), {}))

    reader = stream()
    start = reader.initialOffset()
    [task] = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    path.rename(kept)
    if damage == "replaced":
        box("alice", 1)
    if damage == "corrupt":
        path.write_text("buy milk\n" * 500)

    with pytest.raises(Unreadable, match=f"{option}=true"):
        list(reader.read(task))
    with pytest.raises(Unreadable) as failed:
        list(stream(mode="FAILFAST", **{option: "true"}).read(task))
    assert "=true" not in str(failed.value)  # the option is set, and does not help
    assert [] == list(stream(**{option: "true"}).read(task))
    kept.rename(path)
    assert 2 == sum(batch.num_rows for batch in reader.read(task))


@pytest.mark.parametrize("column", ["frame", "body"])
def test_batches_of_large_rows_hold_few(column: str, tmp_path: Path) -> None:
    """
    A batch is full by its bytes as well as by its rows; nothing is left out.

    Whichever column the bytes are in.
    """
    from onceward.fleet.plan import Slice  # noqa: PLC0415 - as above
    from onceward.fleet.rows import Wanted  # noqa: PLC0415 - as above
    from onceward.fleet.spark.options import Options  # noqa: PLC0415 - as above
    from onceward.fleet.spark.reader import read as read_slices  # noqa: PLC0415 - as above

    with Postbox(tmp_path / "alice.db", agent="alice", start=False, hold_unknown=True) as alice:
        alice.session().send_many([("bob", {"text": "x" * 50_000})] * 200, type="note")
    wanted = Wanted({"_seq": "bigint", column: "string"})
    batches = list(
        read_slices(
            Options.of({"path": str(tmp_path)}), wanted, [Slice(str(tmp_path / "alice.db"))]
        )
    )

    assert list(range(1, 201)) == [seq for batch in batches for seq in batch.column(0).to_pylist()]
    assert max(batch.num_rows for batch in batches) < 100
