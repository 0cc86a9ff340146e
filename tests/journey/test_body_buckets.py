"""Large bodies in a bucket: a real S3 server, from the package ``moto``, over HTTP."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("moto.server", reason="pip install 'moto[server]' brings it")
pytest.importorskip("pyarrow", reason="pip install 'onceward[bodies]' brings it")

from moto.server import ThreadedMotoServer
from pyarrow import fs
from tests.ports import free_port

from onceward import Agent, Postbox
from onceward.errors import StoreFault
from onceward.features.large_bodies.bucket import Bucket
from onceward.testing import Controls, LargeBodyStoreConformance, ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BODY = "x" * 10_000
A_MONTH = 30 * 86_400


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
    return f"s3://{name}/home?scheme=http&endpoint_override={server}&region=us-east-1"


class TestBucket(LargeBodyStoreConformance):
    """A bucket keeps the contract of stores."""

    @pytest.fixture
    def store(self, bucket: str) -> Bucket:
        """Return an empty bucket."""
        return Bucket(bucket)


def test_a_body_goes_through_a_bucket_and_is_removed_with_its_message(
    tmp_path: Path, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The setting may come from the environment; recipients of another process need it, too."""
    monkeypatch.setenv("ONCEWARD_LARGE_BODY_STORE", bucket)
    got, agent = list[Any](), Agent("reader")
    agent.on("text")(got.append)
    clock = ManualClock(round(time.time() * 1000))
    controls = Controls(clock=clock)
    Postbox(tmp_path / "reader.db", agent="reader", start=False, testing=controls).close()

    with Postbox(
        tmp_path / "shop.db", agent="shop", start=False, large_body=5000, testing=controls
    ) as shop:
        sent = shop.send("reader", BODY)
        shop.run_until_idle()
    with Postbox(tmp_path / "reader.db", agent=agent, start=False, testing=controls) as box:
        box.run_until_idle()
    names = [name for name, _ in Bucket(bucket).names("shop") if sent in name]
    assert ([BODY], 1, False) == (got, len(names), (tmp_path / "bodies").exists())

    clock.advance(A_MONTH)
    for name in ("reader", "shop", "reader", "shop"):
        with Postbox(tmp_path / f"{name}.db", start=False, testing=controls) as box:
            box.run_until_idle()
            box.file.run_maintenance()
    assert [] == [name for name, _ in Bucket(bucket).names("shop") if sent in name]


@pytest.mark.parametrize("missing", ["bucket", "server"])
def test_a_bucket_that_is_not_there_makes_a_send_fail(
    tmp_path: Path, bucket: str, server: str, missing: str
) -> None:
    """The postbox opens all the same; the error is that of the store, and nothing is written."""
    gone = bucket.replace("s3://bucket", "s3://no-such-bucket")
    if missing == "server":
        gone = bucket.replace(server, f"127.0.0.1:{free_port()}")
    Postbox(tmp_path / "reader.db", agent="reader", start=False).close()
    with Postbox(
        tmp_path / "shop.db", agent="shop", start=False, large_body=5000, large_body_store=gone
    ) as shop:
        with pytest.raises(StoreFault, match="cannot be stored") as told:
            shop.send("reader", BODY)
        assert [(0,)] == shop.query("SELECT count(*) FROM onceward_outbox")

    assert told.value.retryable
