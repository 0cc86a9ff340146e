"""
Check the invariants of a file, and repair violations.

Imports core, file and message; never another feature.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from onceward.core.contract import Feature, Late

if TYPE_CHECKING:
    from onceward.core.contract import Opening

late = partial(Late, __name__)


def _audit(opening: Opening) -> None:
    """Write an audit log, if the settings name one."""
    if opening.deps.settings.audit is not None:
        late("audit.begin")(opening)


FEATURE: Final = Feature(
    name="checks",
    rules=late("invariants.rules"),
    repairs=late("repairs.repairs"),
    opens=_audit,
)
