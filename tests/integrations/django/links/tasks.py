"""The background work of a site that keeps bookmarks: tasks of Django, and a job of each minute."""

from __future__ import annotations

from typing import Any, Final

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from tests.integrations.django.links import web
from tests.integrations.django.links.models import Bookmark, Page, Profile

from onceward import Agent
from onceward.integrations.django.tasks import task

FOUND: Final = ("icon", "preview")
"""Fields of a bookmark that a task finds, each by a switch of the profile."""
AT_ONCE: Final = 5


def works() -> bool:
    """Return whether the site has background work."""
    return bool(getattr(settings, "LINKS_WORK", True))


def wants(user: User, switch: str) -> bool:
    """Return whether a user wants a kind of background work, and the site has it."""
    return works() and bool(getattr(Profile.objects.get(user=user), switch))


def archive(user: User, bookmark: Bookmark, *, again: bool) -> None:
    """Ask for a copy of a bookmark in the archive of the web."""
    if wants(user, "archives"):
        store_in_archive.enqueue(bookmark.id, again=again)


@task
def store_in_archive(bookmark_id: int, *, again: bool) -> None:
    """Store a copy, unless there is one."""
    bookmark = Bookmark.objects.filter(id=bookmark_id).first()
    if bookmark is not None and (again or not bookmark.archive):
        bookmark.archive = web.ask("archive", bookmark.url)
        bookmark.save(update_fields=["archive"])


def look_for(what: str, user: User, bookmark: Bookmark) -> None:
    """Look for the icon or the preview of a bookmark."""
    if wants(user, f"{what}s"):
        find.enqueue(what, bookmark.id)


@task
def find(what: str, bookmark_id: int) -> None:
    """Look once, and keep what is new; the other fields of the bookmark stay as they are."""
    bookmark = Bookmark.objects.filter(id=bookmark_id).first()
    if bookmark is None:
        return
    found = web.ask(what, bookmark.url) or ""
    if found != getattr(bookmark, what):
        setattr(bookmark, what, found)
        bookmark.save(update_fields=[what])


def look_for_missing(what: str, user: User) -> None:
    """Look for what the bookmarks of a user lack."""
    if wants(user, f"{what}s"):
        find_all.enqueue(what, user.id, missing=True)


def refresh_icons(user: User) -> None:
    """Look for all icons of a user again, if the site has that."""
    if wants(user, "icons") and getattr(settings, "LINKS_REFRESH", True):
        find_all.enqueue("icon", user.id, missing=False)


@task
def find_all(what: str, user_id: int, *, missing: bool) -> None:
    """Enqueue a task for each bookmark, with the end of this one."""
    chosen = Bookmark.objects.filter(owner_id=user_id)
    for bookmark in chosen.filter(**{what: ""}) if missing else chosen:
        find.enqueue(what, bookmark.id)


def describe(bookmark: Bookmark) -> None:
    """Ask for title and description of a bookmark."""
    if works():
        read_description.enqueue(bookmark.id)


@task
def read_description(bookmark_id: int) -> None:
    """Keep what the page says of itself."""
    bookmark = Bookmark.objects.filter(id=bookmark_id).first()
    if bookmark is not None:
        bookmark.title, bookmark.description = web.ask("description", bookmark.url)
        bookmark.save()


def copies() -> bool:
    """Return whether the site copies pages."""
    return works() and bool(getattr(settings, "LINKS_COPIES", True))


def copy(*bookmarks: Bookmark) -> int:
    """Note that pages are to be copied; return how many."""
    wanted = [Page(bookmark=each, name=f"Copy of {each.url}") for each in bookmarks]
    return len(Page.objects.bulk_create(wanted)) if copies() else 0


def copy_missing(user: User) -> int:
    """Note that pages are to be copied of which there is no copy, and none on its way."""
    there = Page.objects.filter(kind="snapshot", state__in=["pending", "complete"])
    lacking = Bookmark.objects.filter(owner=user).exclude(id__in=there.values("bookmark_id"))
    return copy(*lacking)


def copy_pages() -> None:
    """Copy a few pages that wait, one after the other; a second round waits for the first."""
    for page in Page.objects.filter(state="pending").order_by("id")[:AT_ONCE]:
        copy_page(page.id)


def copy_page(page_id: int) -> None:
    """Copy a page; what fails is noted, and ends no round."""
    page = Page.objects.filter(id=page_id).first()
    if page is None:
        return
    try:
        with transaction.atomic():
            page.content_type = web.ask("page", page.bookmark.url)
        page.state = "complete"
    except OSError:
        page.state = "failed"
    page.save()


def state_of(page: Any) -> str:
    """Return how far a copy is."""
    return str(Page.objects.get(id=page.id).state)


def new_site() -> Agent:
    """Return the agent of a site, which makes a round each minute."""
    made = Agent("app")
    made.every("1m", overlap="skip")(copy_pages)
    return made


site = new_site()
