"""Store bodies as objects of a bucket: S3, what speaks its protocol, GCS and ABFS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Final

from onceward.errors import InvalidArgument
from onceward.message.extras import needs

with needs("bodies", "a bucket for large bodies"):
    import pyarrow as pa
    from pyarrow.fs import FileSelector, FileType

from onceward.file.buckets import filesystem_at

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

URI: Final = re.compile(r"(s3|gs|gcs|abfss?)://[^/?].*")


class Bucket:
    """The objects below a URI; one appears when its upload is complete."""

    def __init__(self, uri: str) -> None:
        if URI.fullmatch(uri) is None:
            raise InvalidArgument(
                f"large_body_store {uri!r} does not name a bucket: write s3://bucket/folder"
            )
        self._uri = uri

    @cached_property
    def _place(self) -> tuple[FileSystem, str]:
        """The bucket's filesystem, and the path in it; S3 may be asked for its region."""
        try:
            found, base = filesystem_at(self._uri)
        except (pa.ArrowInvalid, ValueError) as error:
            raise InvalidArgument(f"large_body_store {self._uri!r}: {error}") from error
        return found, base.rstrip("/")

    def put(self, name: str, data: bytes) -> None:
        """Upload an object."""
        bucket, base = self._place
        stream = bucket.open_output_stream(f"{base}/{name}")
        stream.write(data)
        stream.close()

    def get(self, name: str) -> bytes:
        """Return the content of an object."""
        bucket, base = self._place
        with bucket.open_input_stream(f"{base}/{name}") as stream:
            data: bytes = stream.read()
        return data

    def delete(self, name: str) -> None:
        """Delete an object, if it is there."""
        bucket, base = self._place
        with suppress(FileNotFoundError):
            bucket.delete_file(f"{base}/{name}")

    def names(self, folder: str) -> Iterator[tuple[str, datetime]]:
        """Yield what a listing shows."""
        bucket, base = self._place
        chosen = FileSelector(f"{base}/{folder}", allow_not_found=True, recursive=True)
        for each in bucket.get_file_info(chosen):
            if each.type == FileType.File:
                yield each.path.removeprefix(f"{base}/"), each.mtime
