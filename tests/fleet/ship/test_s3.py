"""The log in a bucket: a real S3 server, from the package ``moto``, over HTTP."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.children import PYTHON, side_by_side

pytest.importorskip("moto.server", reason="pip install 'moto[server]' brings it")

from moto.server import ThreadedMotoServer
from pyarrow import fs
from tests.fleet.ship.comparing import level
from tests.fleet.ship.dying import Killed, Stepping, kill
from tests.fleet.ship.test_killed import PACE, _shipper
from tests.fleet.world import World
from tests.ports import free_port

from onceward import Postbox
from onceward.fleet import ship
from onceward.fleet.ship import ShippedLog
from onceward.fleet.ship.objects import LogUnreadable, LogUnwritable, objects_at
from onceward.testing import Controls

Pair = Callable[[], tuple[Postbox, Postbox]]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Return the address of an S3 server."""
    made = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    made.start()
    host, port = made.get_host_and_port()
    yield f"{host}:{port}"
    made.stop()


@pytest.fixture
def bucket(server: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URI of an empty bucket."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    name = f"bucket-{abs(hash(request.node.name))}"
    where = f"?scheme=http&endpoint_override={server}&region=us-east-1"
    made = fs.S3FileSystem(
        access_key="testing",
        secret_key="testing",  # noqa: S106 - the server takes any
        region="us-east-1",
        scheme="http",
        endpoint_override=server,
        allow_bucket_creation=True,
        request_timeout=60,  # the first request finds a server that still loads its modules
    )
    made.create_dir(name)
    return f"s3://{name}/fleet/log{where}"


@pytest.fixture
def changed(world: World, pair: Pair) -> Path:
    """Return alice's file, in which three rows ended and two did not."""
    alice, bob = pair()
    for _ in range(3):
        alice.send("bob", {"wish": "fine"}, type="do")
    world.run(alice, bob)
    for _ in range(2):
        alice.send("bob", {"wish": "fine"}, type="do")
    return alice.file.path


def test_a_log_in_a_bucket_equals_the_files(world: World, pair: Pair, bucket: str) -> None:
    """Shipped to S3 between all that happens, the log ends level with the files."""
    alice, bob = pair()
    for wish in ("fine", "reject", "fine"):
        alice.send("bob", {"wish": wish}, type="do")
        ship.files([str(world.folder)], bucket)
        world.run(alice, bob)
    bob.dead_letters.discard_all()
    ship.files([str(world.folder)], bucket)

    assert [] == level(bucket, world.folder.glob("*.db"))


def test_a_shipper_to_a_bucket_may_be_killed_anywhere(changed: Path, bucket: str) -> None:
    """At each tenth moment a shipper dies; each time the next one brings the log level."""
    count = Stepping(objects_at(bucket.replace("/log?", "/count?")), -1, kill)
    _shipper(changed, count).once()

    for when in range(1, count.steps + 1, 4):
        uri = bucket.replace("/log?", f"/killed-{when}?")
        with pytest.raises(Killed):
            _shipper(changed, Stepping(objects_at(uri), when, kill)).once()
        [done] = _shipper(changed, objects_at(uri)).once()

        assert ("", []) == (done.error, level(uri, [changed])), when


def test_a_shipper_to_a_bucket_may_be_killed_among_its_votes(changed: Path, bucket: str) -> None:
    """The votes of a dead shipper are counted: what was chosen is finished by the next one."""
    for when in range(1, 60):
        uri = bucket.replace("/log?", f"/votes-{when}?")
        objects = objects_at(uri)
        steps = Stepping(objects, when, kill)
        inner_put, inner_get, inner_names = objects.put, objects.get, objects.names
        objects.put = lambda *a, s=steps, i=inner_put: s._step(i, *a)  # type: ignore[method-assign]
        objects.get = lambda *a, s=steps, i=inner_get: s._step(i, *a)  # type: ignore[method-assign]
        objects.names = lambda *a, s=steps, i=inner_names: s._step(i, *a)  # type: ignore[method-assign]
        try:
            _shipper(changed, objects).once()
        except Killed:
            [done] = _shipper(changed, objects_at(uri)).once()
            assert ("", []) == (done.error, level(uri, [changed])), when
            continue
        break
    assert 10 < when < 59


PROGRAM = """
import sys
from onceward.fleet import ship
[done] = ship.files([sys.argv[1]], sys.argv[2])
assert not done.error, done.error
"""


def test_two_processes_ship_to_one_bucket(changed: Path, bucket: str) -> None:
    """Two programs at once agree on every commit without a conditional write."""
    side_by_side([[*PYTHON, "-c", PROGRAM, changed, bucket]] * 2)

    assert [] == level(bucket, [changed])


def test_votes_of_old_numbers_leave_nothing(
    changed: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many commits there were, a commit finds no more votes than manifests."""
    monkeypatch.setattr("onceward.fleet.ship.manifest.KEPT", 2)
    for _ in range(6):
        with Postbox(changed, start=False) as box:
            box.send("bob", {"wish": "fine"}, type="do")
        ship.files([str(changed)], bucket)

    log = ShippedLog(bucket)
    [file] = log.files()
    kept = [f"{number:020d}.json" for number in (4, 5, 6)]
    folder = file.manifest.folder
    assert kept == log.objects.names(f"{folder}/manifests")
    assert kept == log.objects.names(f"{folder}/manifests.votes")


def test_two_hosts_with_copies_of_one_file_keep_both_histories(
    world: World, pair: Pair, bucket: str, tmp_path: Path
) -> None:
    """Each is an epoch: the file that is seen again after its clone says so once, in a commit."""
    alice, bob = pair()
    alice.send("bob", {"wish": "fine"}, type="do")
    world.run(alice, bob)
    ship.files([str(world.path("alice"))], bucket)
    world.rest()
    other = tmp_path / "host" / "alice.db"
    other.parent.mkdir()
    shutil.copyfile(world.path("alice"), other)
    for path in (world.path("alice"), other):
        with Postbox(path, start=False, testing=Controls(clock=world.clock)) as box:
            for _ in range(2):
                box.send(box.agent, {"wish": path.parent.name}, type="do")
        world.clock.advance(1)

    told = [ship.files([str(path)], bucket)[0].history for path in (world.path("alice"), other)]
    confirmed, *again = [
        ship.files([str(path)], bucket)[0] for path in (world.path("alice"), other) * 2
    ]

    assert ["same", "restored"] == told
    assert ("copied", 1, 0, 1) == (
        confirmed.history,
        confirmed.epoch,
        confirmed.rows,
        confirmed.commits,
    )
    assert [(2, 0), (1, 0), (2, 0)] == [(done.epoch, done.commits) for done in again]


def test_an_upload_that_breaks_off_counts_for_nothing(
    changed: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A segment that is shorter than what was written is noticed before the commit."""
    objects = objects_at(bucket)
    whole: Any = objects.put

    def half(path: str, data: bytes) -> None:
        whole(path, data[: len(data) // 2] if path.endswith(".parquet") else data)

    monkeypatch.setattr(objects, "put", half)
    [broken] = _shipper(changed, objects).once()
    assert "is missing or incomplete: ship again" in broken.error
    monkeypatch.undo()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")

    [done] = ship.files([str(changed)], bucket, pace=PACE)

    assert ("", []) == (done.error, level(ShippedLog(bucket), [changed]))


def test_a_server_that_is_gone_is_told(changed: Path, bucket: str, server: str) -> None:
    """Where the bucket does not exist nothing is written, and the error says to ship again."""
    nowhere = bucket.replace("s3://bucket", "s3://no-such-bucket")

    with pytest.raises(LogUnwritable, match="ship again"):
        ship.files([str(changed)], nowhere)


def test_a_network_that_is_down_is_no_trouble_of_a_file(changed: Path) -> None:
    """What cannot be listed is told as the log's, with what to look at, and no file is blamed."""
    down = fs.S3FileSystem(
        access_key="testing",
        secret_key="testing",  # noqa: S106 - no server reads it
        region="us-east-1",
        scheme="http",
        endpoint_override=f"127.0.0.1:{free_port()}",
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=1),
    )

    with pytest.raises(LogUnreadable, match="check its URI and credentials") as told:
        ship.files([str(changed)], "bucket/log", filesystem=down)

    assert told.value.retryable
    assert changed.name not in str(told.value)
