"""The models of a shop."""

from __future__ import annotations

from typing import Any

from django.db import models


class Customer(models.Model):
    """A customer."""

    name: Any = models.CharField(max_length=50, unique=True)

    class Meta:
        """Where it is kept."""

        app_label = "shop"


class Invoice(models.Model):
    """An invoice, with a field of each kind that SQLite has no type for."""

    customer: Any = models.ForeignKey(Customer, models.CASCADE, null=True)
    cents: Any = models.IntegerField(default=0)
    share: Any = models.DecimalField(max_digits=6, decimal_places=2, null=True)
    paid: Any = models.BooleanField(default=False)
    due: Any = models.DateField(null=True)
    made_at: Any = models.DateTimeField(null=True)
    at: Any = models.TimeField(null=True)
    took: Any = models.DurationField(null=True)
    notes: Any = models.JSONField(null=True)
    number: Any = models.UUIDField(null=True)
    scan: Any = models.BinaryField(null=True)
    tags: Any = models.ManyToManyField("Tag")

    class Meta:
        """Where it is kept."""

        app_label = "shop"


class Tag(models.Model):
    """A word."""

    word: Any = models.CharField(max_length=20)

    class Meta:
        """Where it is kept."""

        app_label = "shop"
