"""
A site that keeps bookmarks, with the background work of linkding.

Each test states one of the behaviours that the 44 tests of its tasks assert; all of them ran on
huey.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import override_settings
from tests.integrations.django.links import tasks, web
from tests.integrations.django.links.models import Bookmark, Page, Profile

from onceward import Postbox
from onceward.integrations.django import postbox, worker
from onceward.integrations.django.testing import run_until_idle
from onceward.testing import Controls, ManualClock

WHAT = ("icon", "preview")
LATER = {"icon": "icon-2.png", "preview": "preview-2.png"}


@pytest.fixture
def ada(box: Postbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    """A user of the site, who wants all background work; the web answers."""
    del box  # the site has it
    monkeypatch.setattr(tasks, "site", tasks.new_site())
    connection.settings_dict["OPTIONS"]["handlers"] = f"{tasks.__name__}:site"
    worker._agents.clear()
    web.asked.clear()
    web.answers = {
        "archive": "https://archive/1", "icon": "icon.png", "preview": "preview.png",
        "description": ("new title", "new description"), "page": "text/html",
    }  # fmt: skip
    yield user("ada")
    worker._agents.clear()


def user(name: str, **profile: bool) -> User:
    """Return a new user."""
    made = User.objects.create_user(name)
    Profile.objects.create(user=made, **profile)
    return made


def bookmark(owner: User, **fields: Any) -> Any:
    """Return a new bookmark."""
    return Bookmark.objects.create(owner=owner, **fields)


def worked() -> int:
    """Run what is due; return how many tasks there were."""
    run_until_idle()
    [(count,)] = postbox().query("SELECT count(*) FROM onceward_inbox WHERE state = 'processed'")
    return int(count)


def renames(what: str, answer: Any) -> None:
    """Let a user rename all bookmarks while the web is asked."""

    def asked(_: str) -> Any:
        Bookmark.objects.update(title="meanwhile")
        return answer

    web.answers[what] = asked


# -- copies in the archive of the web ---------------------------------------------------------


def test_an_archive_copy_is_kept(ada: User) -> None:
    """One task asks once."""
    mine = bookmark(ada)
    tasks.archive(ada, mine, again=False)

    assert 1 == worked()
    mine.refresh_from_db()
    assert ("https://archive/1", 1) == (mine.archive, len(web.asked))


@pytest.mark.usefixtures("ada")
def test_an_archive_copy_of_no_bookmark_ends_well() -> None:
    """The task has run, and asked for nothing."""
    tasks.store_in_archive.enqueue(123, again=False)

    assert (1, []) == (worked(), web.asked)


@pytest.mark.parametrize(("again", "kept"), [(False, "old"), (True, "https://archive/1")])
def test_an_archive_copy_is_replaced_on_demand_only(ada: User, again: bool, kept: str) -> None:
    """Without the wish for a new one nothing is asked."""
    mine = bookmark(ada, archive="old")
    tasks.archive(ada, mine, again=again)
    worked()

    mine.refresh_from_db()
    assert (kept, int(again)) == (mine.archive, len(web.asked))


def test_an_archive_copy_overwrites_no_other_field(ada: User) -> None:
    """What a user changed while the archive was asked stays."""
    mine = bookmark(ada)
    renames("archive", "https://archive/1")
    tasks.archive(ada, mine, again=False)
    worked()

    mine.refresh_from_db()
    assert ("meanwhile", "https://archive/1") == (mine.title, mine.archive)


@pytest.mark.parametrize("off", ["site", "user"])
def test_no_archive_copy_is_asked_for_where_that_is_off(ada: User, off: str) -> None:
    """For the whole site, or by the user."""
    owner = user("bob", archives=False) if off == "user" else ada
    with override_settings(LINKS_WORK=off == "user"):
        tasks.archive(owner, bookmark(owner), again=False)

    assert 0 == worked()


# -- icons and previews -----------------------------------------------------------------------


@pytest.mark.parametrize("what", WHAT)
def test_what_is_found_is_kept(ada: User, what: str) -> None:
    """By one task."""
    mine = bookmark(ada)
    tasks.look_for(what, ada, mine)

    assert 1 == worked()
    mine.refresh_from_db()
    assert web.answers[what] == getattr(mine, what)


@pytest.mark.parametrize("what", WHAT)
def test_what_is_found_later_takes_its_place(ada: User, what: str) -> None:
    """After one look."""
    mine = bookmark(ada, **{what: web.answers[what]})
    web.answers[what] = LATER[what]
    tasks.look_for(what, ada, mine)
    worked()

    mine.refresh_from_db()
    assert (LATER[what], 1) == (getattr(mine, what), len(web.asked))


def test_a_preview_that_is_gone_is_removed(ada: User) -> None:
    """A page without one has none."""
    mine = bookmark(ada, preview="preview.png")
    web.answers["preview"] = None
    tasks.look_for("preview", ada, mine)
    worked()

    mine.refresh_from_db()
    assert ("", 1) == (mine.preview, len(web.asked))


@pytest.mark.usefixtures("ada")
@pytest.mark.parametrize("what", WHAT)
def test_a_bookmark_that_is_gone_is_not_looked_for(what: str) -> None:
    """The task ends well."""
    tasks.find.enqueue(what, 123)

    assert (1, []) == (worked(), web.asked)


@pytest.mark.parametrize("what", WHAT)
def test_a_find_overwrites_no_other_field(ada: User, what: str) -> None:
    """What a user changed while the page was asked stays."""
    mine = bookmark(ada)
    renames(what, web.answers[what])
    tasks.look_for(what, ada, mine)
    worked()

    mine.refresh_from_db()
    assert ("meanwhile", LATER[what].replace("-2", "")) == (mine.title, getattr(mine, what))


@pytest.mark.parametrize("off", ["site", "user"])
@pytest.mark.parametrize("what", WHAT)
def test_nothing_is_looked_for_where_that_is_off(ada: User, what: str, off: str) -> None:
    """For the whole site, or by the user."""
    owner = user("bob", **{f"{what}s": False}) if off == "user" else ada
    with override_settings(LINKS_WORK=off == "user"):
        tasks.look_for(what, owner, bookmark(owner))

    assert 0 == worked()


@pytest.mark.parametrize("what", WHAT)
def test_all_that_lack_something_are_looked_for(ada: User, what: str) -> None:
    """One task enqueues the others; what is there is not asked for again."""
    for found in ("", "", "", "there", "there"):
        bookmark(ada, **{what: found})
    tasks.look_for_missing(what, ada)

    assert (1 + 3, 3) == (worked(), len(web.asked))
    assert 0 == Bookmark.objects.filter(**{what: ""}).count()


def each_owner(ada: User) -> None:
    """Give two users three bookmarks each."""
    for owner in (ada, user("bob")):
        for _ in range(3):
            bookmark(owner)


@pytest.mark.parametrize("what", WHAT)
def test_only_the_user_s_own_are_looked_for(ada: User, what: str) -> None:
    """Those of another one stay as they are."""
    each_owner(ada)
    tasks.look_for_missing(what, ada)
    worked()

    assert {"bob"} == set(
        Bookmark.objects.filter(**{what: ""}).values_list("owner__username", flat=True)
    )
    assert 3 == len(web.asked)


@pytest.mark.parametrize("off", ["site", "user"])
@pytest.mark.parametrize("what", WHAT)
def test_no_list_is_looked_for_where_that_is_off(ada: User, what: str, off: str) -> None:
    """Not even the task that lists them runs."""
    owner = user("bob", **{f"{what}s": False}) if off == "user" else ada
    bookmark(owner)
    with override_settings(LINKS_WORK=off == "user"):
        tasks.look_for_missing(what, owner)

    assert 0 == worked()


def test_all_icons_are_refreshed(ada: User) -> None:
    """Those that are there, too."""
    for found in ("", "", "there", "there"):
        bookmark(ada, icon=found)
    tasks.refresh_icons(ada)

    assert 1 + 4 == worked()
    assert 4 == Bookmark.objects.filter(icon="icon.png").count()


def test_only_the_user_s_own_icons_are_refreshed(ada: User) -> None:
    """Those of another one stay as they are."""
    each_owner(ada)
    tasks.refresh_icons(ada)
    worked()

    assert (3, 3) == (Bookmark.objects.filter(icon="icon.png").count(), len(web.asked))


@pytest.mark.parametrize("off", ["LINKS_WORK", "LINKS_REFRESH", "user"])
def test_no_icon_is_refreshed_where_that_is_off(ada: User, off: str) -> None:
    """For the whole site, by its setting for this, or by the user."""
    owner = user("bob", icons=False) if off == "user" else ada
    bookmark(owner)
    with override_settings(**{off: False}):
        tasks.refresh_icons(owner)

    assert 0 == worked()


# -- titles -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("on", "count"), [(False, 0), (True, 1)])
def test_a_description_is_asked_for_where_the_site_works(ada: User, on: bool, count: int) -> None:
    """By one task, or none."""
    with override_settings(LINKS_WORK=on):
        tasks.describe(bookmark(ada))

    assert count == worked()


@pytest.mark.usefixtures("ada")
def test_a_bookmark_that_is_gone_is_not_described() -> None:
    """The task ends well."""
    tasks.read_description.enqueue(123)

    assert (1, []) == (worked(), web.asked)


def test_a_description_is_kept(ada: User) -> None:
    """Title and description, in place of the old ones."""
    mine = bookmark(ada, title="old", description="old")
    tasks.describe(mine)
    worked()

    mine.refresh_from_db()
    assert ("new title", "new description") == (mine.title, mine.description)


# -- copies of pages --------------------------------------------------------------------------


def test_a_copy_is_noted_as_pending(ada: User) -> None:
    """Each wish is one; nothing is asked yet."""
    mine = bookmark(ada)
    assert [1, 1] == [tasks.copy(mine), tasks.copy(mine)]

    found = list(Page.objects.values_list("bookmark_id", "kind", "content_type", "state"))
    assert 2 * [(mine.id, "snapshot", "", "pending")] == found
    assert (True, []) == (Page.objects.first().name.startswith("Copy"), web.asked)


def test_a_round_copies_what_waits(ada: User) -> None:
    """One page after the other; one that fails ends no round."""
    mine = bookmark(ada)
    tasks.copy(mine, mine, mine)
    answers: list[Callable[[], str]] = [lambda: "text/html", _fails, lambda: "text/html"]
    web.answers["page"] = lambda _: answers.pop(0)()
    tasks.copy_pages()

    assert ["complete", "failed", "complete"] == [
        tasks.state_of(each) for each in Page.objects.order_by("id")
    ]


def _fails() -> str:
    raise OSError


def test_a_round_is_made_each_minute_by_a_worker(ada: User) -> None:
    """Five pages each; rounds that were missed are one."""
    clock = ManualClock(postbox()._db.now() + 1000)
    controls = Controls(clock=clock)
    tasks.copy(*(bookmark(ada) for _ in range(7)))
    waiting = list[int]()
    with Postbox(
        postbox().file.path, agent=worker.agent_of("default"), start=False, testing=controls
    ) as running:
        for seconds in (0, 60, 30, 30, 600):
            clock.advance(seconds)
            running.run_until_idle()
            waiting.append(Page.objects.filter(state="pending").count())

    assert [7, 2, 2, 0, 0] == waiting


@pytest.mark.usefixtures("ada")
def test_a_copy_of_nothing_ends_well() -> None:
    """Its page was deleted meanwhile."""
    tasks.copy_page(123)

    assert [] == web.asked


@pytest.mark.parametrize("off", ["LINKS_COPIES", "LINKS_WORK"])
def test_no_copy_is_noted_where_that_is_off(ada: User, off: str) -> None:
    """By the setting for copies, or for all background work."""
    with override_settings(**{off: False}):
        assert 0 == tasks.copy(bookmark(ada))

    assert 0 == Page.objects.count()


def test_missing_copies_are_those_without_a_good_one(ada: User) -> None:
    """One that failed, and a file of another kind, are none."""
    have = [("snapshot", "complete"), ("snapshot", "pending")]
    lack = [None, ("snapshot", "failed"), ("upload", "pending"), ("upload", "complete")]
    made = {}
    for page in (*have, *lack):
        made[page] = bookmark(ada)
        if page is not None:
            Page.objects.create(bookmark=made[page], kind=page[0], state=page[1])
    before = set(Page.objects.values_list("id", flat=True))

    assert 4 == tasks.copy_missing(ada)
    new = Page.objects.exclude(id__in=before)
    assert sorted(made[each].id for each in lack) == sorted(
        new.values_list("bookmark_id", flat=True)
    )


def test_missing_copies_are_the_user_s_own(ada: User) -> None:
    """Those of another one are not counted."""
    each_owner(ada)

    assert (3, 3) == (tasks.copy_missing(ada), Page.objects.count())
