"""Serve agents over HTTP, with a server of their own or in your app; needs ``onceward[http]``."""

from onceward.transports.http_endpoint import HttpEndpoint, HttpLimits
from onceward.transports.http_listener import HttpListener
from onceward.transports.poll import PollListener

__all__ = ["HttpEndpoint", "HttpLimits", "HttpListener", "PollListener"]
