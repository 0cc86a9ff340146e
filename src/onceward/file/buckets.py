"""Open the filesystem of a bucket by its URI, with pyarrow: S3, GCS, ABFS."""

from __future__ import annotations

from typing import Final

from pyarrow import fs

GCS_LIMIT: Final = "retry_limit_seconds"


def filesystem_at(uri: str) -> tuple[fs.FileSystem, str]:
    """Return the filesystem of a URI and the path in it; pyarrow's errors pass."""
    found: tuple[fs.FileSystem, str] = fs.FileSystem.from_uri(limited(uri))
    return found


def limited(uri: str) -> str:
    """Return a URI with a limit of one minute for GCS; its default is 15."""
    if not uri.startswith(("gs://", "gcs://")) or GCS_LIMIT in uri:
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}{GCS_LIMIT}=60"
