"""The application: ``"onceward.integrations.django"`` in INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig


class OncewardConfig(AppConfig):
    """Brings the command ``manage.py onceward``, and messages in the admin."""

    name = "onceward.integrations.django"
    label = "onceward"
    verbose_name = "Onceward"
    default_auto_field = "django.db.models.BigAutoField"
