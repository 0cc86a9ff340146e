"""Settings and policies: a value's source, its bounds, and how long a failure waits."""

import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward import Postbox, RetryPolicy, Settings, Tuning
from onceward.errors import InvalidArgument

DAY = 86_400.0


def test_defaults_are_the_documented_ones() -> None:
    """With nothing said anywhere, limits are on and files are safe."""
    loaded = Settings.merge(None, {})

    assert ("safe", 1 << 20, 100_000, 1_000_000, "10x 1s..60s ±10%", 7 * DAY, 30.0) == (
        loaded.durability,
        loaded.max_body,
        loaded.max_pending,
        loaded.max_inbox,
        str(loaded.delivery_policy),
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
        ("delivery_attempts", 0),
        ("handler_attempts", 0),
        ("delivery_retry", "0x"),
        ("delivery_retry", "ten times"),
        ("delivery_retry", "10"),
        ("delivery_retry", "60s..1s"),
        ("delivery_retry", "1s 2s"),
        ("delivery_retry", "±101%"),
        ("handler_retry", "-1s"),
        ("handler_retry", 10),
        ("handler_retry", None),
        ("busy_timeout", -1),
        ("lease", 0),
        ("lease", float("inf")),
        ("handler_timeout", float("inf")),
        ("tuning", {"maintenance_interval": float("inf")}),
        ("tuning", {"maintenance_interval": 0}),
        ("lease", 1e300),
        ("retention", 1e300),
        ("workers", 0),
        ("workers", 257),
        ("tuning", {"parcel_max_messages": 0}),
        ("tuning", {"parcel_max_bytes": 1}),
        ("tuning", {"wal_limit": 0}),
        ("tuning", {"no": 0}),
        ("tuning", 5),
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


@pytest.mark.parametrize("retry", ["10x 1s..60s ±10%", "3x 0.5s..2s ±0%"])
def test_a_dump_makes_the_same_settings_again(retry: str) -> None:
    """Settings can be stored; a retry policy is stored as its text."""
    settings = Settings(delivery_retry=retry, handler_retry=retry)

    assert settings == Settings.model_validate(settings.model_dump())
    assert settings == Settings.model_validate_json(settings.model_dump_json())


def test_tuning_is_merged_by_its_fields() -> None:
    """Each field comes from the nearest place that sets it; the environment has flat names."""
    loaded = Settings.merge(
        Settings(tuning=Tuning(carriers=2, claim_messages=3)),
        {"tuning": Tuning(claim_messages=4)},
        env={"ONCEWARD_CARRIERS": "8", "ONCEWARD_RETENTION_SLICE": "5"},
        project={"tuning": {"retention_slice": 6, "wal_limit": 2 << 20}},
    )

    assert Tuning(carriers=2, claim_messages=4, retention_slice=5, wal_limit=2 << 20) == (
        loaded.tuning
    )
    assert Tuning() == Settings.merge(None, {}).tuning


@pytest.mark.parametrize("given", [{"carriers": 0}, {"carrier": 8}])
def test_a_bad_tuning_is_refused(given: Any) -> None:
    """A value out of its bounds, or a name that does not exist, is told at once."""
    with pytest.raises(InvalidArgument, match="carriers"):
        Tuning(**given)


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


def test_the_error_says_where_a_tuning_option_goes(tmp_path: Path) -> None:
    """A name of ``Tuning`` that is given to the postbox, or to the settings, is shown in place."""
    told = re.escape("write tuning=Tuning(max_steps=…)")

    flat: dict[str, Any] = {"max_steps": 3}

    with pytest.raises(InvalidArgument, match=told):
        Settings(**flat)
    with pytest.raises(InvalidArgument, match=told):
        Postbox(tmp_path / "a.db", agent="a", **flat)


def test_the_preset_says_what_it_promises() -> None:
    """
    The five-minute preset has 1,000 places, no jitter, and counts every attempt.

    Keywords still win.
    """
    preset = Settings.five_minutes(max_pending=5, tuning=Tuning(carriers=3))

    assert (5, "11x 1s..60s ±0%", True) == (
        preset.max_pending,
        str(preset.delivery_policy),
        preset.count_unreachable_attempts,
    )
    assert (0, 3) == (preset.tuning.breaker_open_for, preset.tuning.carriers)
    assert 1000 == Settings.five_minutes().max_pending


def test_the_wait_doubles_up_to_the_cap() -> None:
    """Without jitter the waits are 1, 2, 4, 8, 16, 32 and then 60 seconds for ever."""
    policy = Settings(delivery_retry="±0%", handler_retry="±0%").delivery_policy
    rng = random.Random(0)

    assert [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000] == [
        policy.delay(k, rng) for k in range(1, 9)
    ]
    assert 60_000 == policy.delay(100_000, rng)


@given(st.integers(1, 64), st.floats(0, 1), st.integers())
def test_jitter_stays_within_its_share(attempt: int, jitter: float, seed: int) -> None:
    """A wait differs from the plain one by at most the share that was set, up or down."""
    plain = RetryPolicy.parse("±0%").delay(attempt, random.Random(seed))
    varied = replace(RetryPolicy.parse(""), jitter=jitter).delay(attempt, random.Random(seed))

    assert abs(varied - plain) <= plain * jitter + 1


def test_jitter_varies_both_ways() -> None:
    """Some waits are longer and some shorter than the plain one."""
    policy, rng = RetryPolicy.parse("±10%"), random.Random(1)
    waits = [policy.delay(1, rng) for _ in range(200)]

    assert min(waits) < 1000 < max(waits)


@pytest.mark.parametrize("settings", [{}, {"delivery_retry": "3x"}])
@pytest.mark.parametrize("attempts", [1, 2, 11])
def test_attempts_count_the_first_one(attempts: int, settings: Any) -> None:
    """With n attempts the n-th failure is the last, whatever the policy says."""
    policy = Settings(delivery_attempts=attempts, **settings).delivery_policy
    early = [False] * (attempts - 1)

    assert [*early, True, True] == [policy.exhausted(k) for k in range(1, attempts + 2)]


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("", "10x 1s..60s ±10%"),
        ("3x", "3x 1s..60s ±10%"),
        ("2s", "10x 2s..60s ±10%"),
        ("5m ±0%", "10x 300s..300s ±0%"),
        ("+-2.5% 250ms..1m30s 1x", "1x 0.25s..90s ±2.5%"),
        ("0..0", "10x 0s..0s ±10%"),
    ],
)
def test_a_policy_is_written_as_text(text: str, policy: str) -> None:
    """Its parts come in any order; those that are left out have their defaults."""
    assert policy == str(RetryPolicy.parse(text))
    assert RetryPolicy.parse(policy) == RetryPolicy.parse(text)


def test_the_environment_holds_a_policy_as_text() -> None:
    """As a setting, text is what a keyword may be, too."""
    loaded = Settings.merge(None, {}, env={"ONCEWARD_HANDLER_RETRY": "3x 5s..5s"})

    assert "3x 5s..5s ±10%" == str(loaded.handling_policy)
    assert loaded.handling_policy == Settings(handler_retry="3x 5s..5s").handling_policy


def test_a_policy_may_have_a_budget_of_its_own() -> None:
    """Handlers and deliveries may allow different numbers of re-attempts under the same waits."""
    policy = Settings(handler_attempts=1).handling_policy

    assert policy.exhausted(1)


def test_no_wait_at_all_is_possible() -> None:
    """A first wait of zero seconds stays zero."""
    assert [0, 0] == [RetryPolicy.parse("0s").delay(k, random.Random(0)) for k in (1, 5)]


@pytest.mark.parametrize(
    ("settings", "horizon"),
    [
        ({}, 249.3),
        ({"delivery_retry": "±0%"}, 243.0),
        ({"delivery_retry": "±0%", "delivery_attempts": 3}, 3.0),
        ({"delivery_retry": "101x 1s..1s ±0%"}, 100.0),
        ({"delivery_attempts": 1}, 0.0),
        ({"delivery_retry": "0s"}, 0.0),
    ],
)
def test_a_retention_below_the_retry_horizon_is_refused(
    settings: dict[str, Any], horizon: float
) -> None:
    """A mark that is forgotten before the last retry makes a false dead letter ``stale``."""
    kept = Settings.merge(None, settings | {"retention": horizon + 1})

    assert horizon == pytest.approx(kept.delivery_policy.horizon, rel=0.05)
    assert Settings.merge(None, settings | {"retention": kept.delivery_policy.horizon}) is not None
    if horizon:
        with pytest.raises(InvalidArgument, match=r"retention .* is shorter than"):
            Settings.merge(None, settings | {"retention": kept.delivery_policy.horizon - 0.1})
