"""Serve agents over HTTP, with a server of their own or in your app; needs ``onceward[http]``."""

try:
    from onceward.transports.network.http_connections import ConnectionStats
    from onceward.transports.network.http_endpoint import HttpEndpoint, HttpLimits
    from onceward.transports.network.http_listener import HttpListener
    from onceward.transports.network.poll import PollListener
except ModuleNotFoundError as error:
    msg = f"onceward.http needs {error.name}, which is not installed: pip install 'onceward[http]'"
    raise ModuleNotFoundError(msg, name=error.name) from error

__all__ = ["ConnectionStats", "HttpEndpoint", "HttpLimits", "HttpListener", "PollListener"]
