"""Take the webhooks of third parties as messages, in your app; needs ``onceward[http]``."""

from onceward.message.extras import needs

with needs("http", "onceward.webhooks"):
    from onceward.integrations.webhooks.endpoint import WebhookEndpoint
    from onceward.integrations.webhooks.verify import (
        GitHub,
        NotJson,
        NotVerified,
        StandardWebhooks,
        Stripe,
        Verifier,
        Webhook,
    )

__all__ = [
    "GitHub",
    "NotJson",
    "NotVerified",
    "StandardWebhooks",
    "Stripe",
    "Verifier",
    "Webhook",
    "WebhookEndpoint",
]
