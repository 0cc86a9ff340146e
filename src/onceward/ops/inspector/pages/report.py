"""Show the report on a fleet, if one was written."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from onceward.ops.inspector.site import NOT_FOUND, Site, site_of

NAME: Final = "report.html"
PLACES: Final = ("", "report", "reports")
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'self'; sandbox"
"""Policy for the report, which contains its style and no script."""


def report(request: Request) -> Response:
    """Answer with the page around the report."""
    site = site_of(request)
    path = written(site)
    at = None if path is None else int(path.stat().st_mtime * 1000)
    return site.html(request, "report.html", file=path, at=at)


def content(request: Request) -> Response:
    """Answer with the report itself."""
    path = written(site_of(request))
    if path is None:
        raise HTTPException(NOT_FOUND, "no report was written")
    return FileResponse(path, headers={"content-security-policy": POLICY})


def written(site: Site) -> Path | None:
    """Return the file of the report: the given one, else one in the home."""
    given = site.report
    places = [given, given / NAME] if given else [site.targets.home / p / NAME for p in PLACES]
    return next((path for path in places if path.is_file()), None)
