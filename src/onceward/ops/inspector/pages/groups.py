"""The page of a group of messages: how many have ended, and what became of each."""

from __future__ import annotations

from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from onceward.ops.inspector.site import NOT_FOUND, site_of
from onceward.ops.views import groups

ROWS: Final = 200
"""Maximum messages of a group that are shown."""


def group(request: Request) -> Response:
    """Answer with the page of one group."""
    site, name = site_of(request), str(request.path_params["id"])
    with site.reading(request) as reader:
        found = groups.group(reader, name)
        if found is None:
            raise HTTPException(NOT_FOUND, f"{request.path_params['key']} has no group {name}")
        messages = groups.group_messages(reader, name, ROWS)
    return site.html(request, "group.html", one=found, messages=messages)
