"""Settings and policies: a value's source, its bounds, and how long a failure waits."""

import random
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import Settings
from onceward.errors import InvalidArgument

DAY = 86_400.0


def test_defaults_are_the_documented_ones() -> None:
    """With nothing said anywhere, limits are on and files are safe."""
    loaded = Settings.merge(None, {})

    assert ("safe", 1 << 20, 100_000, 1_000_000, 10, 1.0, 60.0, 0.1, 7 * DAY, 30.0) == (
        loaded.durability,
        loaded.max_body,
        loaded.max_pending,
        loaded.max_inbox,
        loaded.max_retries,
        loaded.retry_first,
        loaded.retry_cap,
        loaded.retry_jitter,
        loaded.retention,
        loaded.lease,
    )


def test_a_setting_that_does_not_exist_is_named() -> None:
    """A typing error in a setting is a line that names it, and what was meant."""
    with pytest.raises(InvalidArgument) as caught:
        Settings.merge(None, {"lese": 3})

    assert str(caught.value).startswith("settings has no option lese; did you mean lease? There")


@pytest.mark.parametrize(
    ("overrides", "given_settings", "env", "expected"),
    [
        ({}, None, {}, 100_000),
        ({}, None, {"ONCEWARD_MAX_PENDING": "3"}, 3),
        ({}, Settings(max_pending=2), {"ONCEWARD_MAX_PENDING": "3"}, 2),
        ({}, Settings(max_pending=100_000), {"ONCEWARD_MAX_PENDING": "3"}, 100_000),
        ({"max_pending": 1}, Settings(max_pending=2), {"ONCEWARD_MAX_PENDING": "3"}, 1),
        ({"lease": 5}, Settings(workers=2), {"ONCEWARD_MAX_PENDING": "3"}, 3),
        ({}, None, {"onceward_max_pending": "3", "MAX_PENDING": "4"}, 100_000),
    ],
)
def test_the_nearest_word_wins(
    overrides: dict[str, int], given_settings: Settings | None, env: dict[str, str], expected: int
) -> None:
    """A keyword beats the Settings object, which beats the environment, which beats the default."""
    assert expected == Settings.merge(given_settings, overrides, env=env).max_pending


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_pending", 0),
        ("max_body", 0),
        ("max_retries", -1),
        ("retry_jitter", 1.1),
        ("retry_jitter", -0.1),
        ("retry_first", -1),
        ("retry_cap", float("inf")),
        ("retry_first", float("nan")),
        ("busy_timeout", -1),
        ("lease", 0),
        ("lease", float("inf")),
        ("handler_timeout", float("inf")),
        ("maintenance_interval", float("inf")),
        ("maintenance_interval", 0),
        ("lease", 1e300),
        ("retention", 1e300),
        ("workers", 0),
        ("workers", 257),
        ("parcel_max_messages", 0),
        ("parcel_max_bytes", 1),
        ("wal_limit", 0),
        ("durability", "paranoid?"),
        ("ack", "maybe"),
        ("count_unreachable_attempts", ""),
        ("no_such_setting", 1),
        ("max_pending", "many"),
        ("max_pending", 1.5),
    ],
)
def test_values_out_of_bounds_are_refused(name: str, value: object) -> None:
    """A setting that could not work, overflow or mean anything fails when the postbox is opened."""
    with pytest.raises(InvalidArgument, match="settings"):
        Settings.merge(None, {name: value})


@pytest.mark.parametrize("value", ["", "0", "x", "-1", "1e3x"])
def test_a_bad_environment_is_refused(value: str) -> None:
    """A typing error in the environment is told, not skipped."""
    with pytest.raises(InvalidArgument, match="max_pending"):
        Settings.merge(None, {}, env={"ONCEWARD_MAX_PENDING": value})


@hypothesis.settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(Settings.model_fields)),
        st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none()),
    )
)
def test_any_values_are_loaded_or_refused(values: dict[str, object]) -> None:
    """Whatever is passed ends as valid settings or as the one error that callers know."""
    try:
        loaded = Settings.merge(None, values)
    except InvalidArgument:
        return
    assert set(values) == loaded.model_fields_set


def test_the_preset_says_what_it_promises() -> None:
    """
    The five-minute preset has 1,000 places, no jitter, and counts every attempt.

    Keywords still win.
    """
    preset = Settings.five_minutes(max_pending=5)

    assert (5, 0.0, True) == (
        preset.max_pending,
        preset.retry_jitter,
        preset.count_unreachable_attempts,
    )
    assert 1000 == Settings.five_minutes().max_pending


def test_the_wait_doubles_up_to_the_cap() -> None:
    """Without jitter the waits are 1, 2, 4, 8, 16, 32 and then 60 seconds for ever."""
    policy = Settings(retry_jitter=0).delivery_policy
    rng = random.Random(0)

    assert [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000] == [
        policy.delay(k, rng) for k in range(1, 9)
    ]
    assert 60_000 == policy.delay(100_000, rng)


@given(st.integers(1, 64), st.floats(0, 1), st.integers())
def test_jitter_stays_within_its_share(attempt: int, jitter: float, seed: int) -> None:
    """A wait differs from the plain one by at most the share that was set, up or down."""
    plain = Settings(retry_jitter=0).delivery_policy.delay(attempt, random.Random(seed))
    varied = Settings(retry_jitter=jitter).delivery_policy.delay(attempt, random.Random(seed))

    assert abs(varied - plain) <= plain * jitter + 1


def test_jitter_varies_both_ways() -> None:
    """Some waits are longer and some shorter than the plain one."""
    policy, rng = Settings(retry_jitter=0.1).delivery_policy, random.Random(1)
    waits = [policy.delay(1, rng) for _ in range(200)]

    assert min(waits) < 1000 < max(waits)


@pytest.mark.parametrize("retries", [0, 1, 10])
def test_retries_are_attempts_after_the_first(retries: int) -> None:
    """With n re-attempts the (n+1)-th failure is the last, and no earlier one."""
    policy = Settings(max_retries=retries).delivery_policy

    assert [False] * retries + [True, True] == [policy.exhausted(k) for k in range(1, retries + 3)]


def test_a_policy_may_have_a_budget_of_its_own() -> None:
    """Handlers and deliveries may allow different numbers of re-attempts under the same waits."""
    policy = Settings(handler_retries=0).handling_policy

    assert policy.exhausted(1)


def test_no_wait_at_all_is_possible() -> None:
    """A first wait of zero seconds stays zero."""
    assert [0, 0] == [
        Settings(retry_first=0).delivery_policy.delay(k, random.Random(0)) for k in (1, 5)
    ]


@pytest.mark.parametrize(
    ("settings", "horizon"),
    [
        ({}, 309.3),
        ({"retry_jitter": 0.0}, 303.0),
        ({"retry_jitter": 0.0, "max_retries": 2}, 3.0),
        ({"retry_jitter": 0.0, "max_retries": 100, "retry_cap": 1.0}, 100.0),
        ({"max_retries": 0}, 0.0),
        ({"retry_first": 0.0}, 0.0),
    ],
)
def test_a_retention_below_the_retry_horizon_is_refused(
    settings: dict[str, Any], horizon: float
) -> None:
    """A mark that is forgotten before the last retry makes a false dead letter ``stale``."""
    kept = Settings.merge(None, settings | {"retention": horizon + 1})

    assert horizon == pytest.approx(kept.retry_horizon, rel=0.05)
    assert Settings.merge(None, settings | {"retention": kept.retry_horizon}) is not None
    if horizon:
        with pytest.raises(InvalidArgument, match=r"retention .* is shorter than"):
            Settings.merge(None, settings | {"retention": kept.retry_horizon - 0.1})
