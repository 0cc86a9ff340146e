"""Give stored times as Django has them."""

from __future__ import annotations

import datetime as dt

from django.conf import settings
from django.utils import timezone


def moment(millis: int | None) -> dt.datetime | None:
    """Return a stored time as Django has times: aware if USE_TZ."""
    if millis is None:
        return None
    aware = dt.datetime.fromtimestamp(millis / 1000, tz=dt.UTC)
    return aware if settings.USE_TZ else timezone.make_naive(aware)
