"""Serve agents over HTTP, with a server of their own or in your app; needs ``onceward[http]``."""

from onceward.transports.http_endpoint import HttpEndpoint, HttpLimits
from onceward.transports.http_listener import HttpListener

__all__ = ["HttpEndpoint", "HttpLimits", "HttpListener"]
