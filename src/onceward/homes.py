"""Connect the homes of several machines by one key each; needs ``onceward[homes]``."""

from onceward.message.extras import needs

with needs("homes", "onceward.homes"):
    from onceward.transports.network.neighbours import (
        HomeAgent,
        HomePing,
        Homes,
        KnownHome,
        OwnHome,
    )

__all__ = ["HomeAgent", "HomePing", "Homes", "KnownHome", "OwnHome"]
