"""Serve agents over HTTP, with a separate server or in your app; needs ``onceward[http]``."""

from onceward.message.extras import needs

with needs("http", "onceward.http"):
    from onceward.transports.network.home_polling import HomePollListener
    from onceward.transports.network.http_connections import ConnectionStats
    from onceward.transports.network.http_endpoint import HttpEndpoint, HttpLimits
    from onceward.transports.network.http_listener import HttpListener
    from onceward.transports.network.poll import PollListener

__all__ = [
    "ConnectionStats",
    "HomePollListener",
    "HttpEndpoint",
    "HttpLimits",
    "HttpListener",
    "PollListener",
]
