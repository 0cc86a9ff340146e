"""The settings of the site of these tests."""

SECRET_KEY = "tests"  # noqa: S105 - of no secret
DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "onceward.integrations.django",
    "tests.integrations.django.shop",
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TASKS = {
    "default": {
        "BACKEND": "onceward.integrations.django.tasks.OncewardBackend",
        "QUEUES": ["default", "mail"],
    }
}
DATABASES = {
    "default": {
        "ENGINE": "onceward.integrations.django.backend",
        "NAME": "app.db",
        "OPTIONS": {"agent": "app"},
    }
}
