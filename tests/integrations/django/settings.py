"""The settings of the site of these tests."""

SECRET_KEY = "tests"  # noqa: S105 - not a secret
DEBUG = False
USE_TZ = True
TIME_ZONE = "UTC"
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.messages",
    "django.contrib.sessions",
    "onceward.integrations.django",
    "tests.integrations.django.shop",
    "tests.integrations.django.links",
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "tests.integrations.django.urls"
ALLOWED_HOSTS = ["testserver"]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
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
