"""The models of a site that keeps bookmarks."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models


class Profile(models.Model):
    """What a user wants to have done in the background."""

    user: Any = models.OneToOneField(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    archives: Any = models.BooleanField(default=True)
    icons: Any = models.BooleanField(default=True)
    previews: Any = models.BooleanField(default=True)

    class Meta:
        """Where it is kept."""

        app_label = "links"


class Bookmark(models.Model):
    """A bookmark, and what tasks have found for it."""

    owner: Any = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    url: Any = models.CharField(max_length=200, default="https://example.com")
    title: Any = models.CharField(max_length=100, default="")
    description: Any = models.CharField(max_length=100, default="")
    archive: Any = models.CharField(max_length=200, default="")
    icon: Any = models.CharField(max_length=100, default="")
    preview: Any = models.CharField(max_length=100, default="")

    class Meta:
        """Where it is kept."""

        app_label = "links"


class Page(models.Model):
    """A copy of a bookmark's page, or the wish for one."""

    bookmark: Any = models.ForeignKey(Bookmark, on_delete=models.CASCADE)
    kind: Any = models.CharField(max_length=20, default="snapshot")
    content_type: Any = models.CharField(max_length=20, default="")
    name: Any = models.CharField(max_length=50, default="")
    state: Any = models.CharField(max_length=20, default="pending")

    class Meta:
        """Where it is kept."""

        app_label = "links"
