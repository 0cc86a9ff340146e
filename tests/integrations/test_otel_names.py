"""The names that onceward uses are those of the current conventions."""

import subprocess
import sys

import pytest
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.semconv.schemas import Schemas

from onceward.integrations.otel import names

NAMES = sorted(
    name for name in vars(names) if name.startswith("MESSAGING_") or name == "ERROR_TYPE"
)
KNOWN = vars(messaging_attributes) | vars(messaging_metrics) | vars(error_attributes)
LOADED = """
import sys, onceward
from pathlib import Path
with onceward.Postbox(sys.argv[1], agent="a", start=False, hold_unknown=True) as box:
    box.send("b", {})
print(*(name for name in sys.modules if name.startswith(("opentelemetry", "onceward.observed"))))
"""


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_that_of_the_conventions(name: str) -> None:
    """Each constant is in the package of the conventions, under the same name."""
    assert KNOWN[name] == getattr(names, name)


def test_our_own_names_stand_in_our_namespace() -> None:
    """What the conventions do not name bears the name of the system, not one of theirs."""
    ours = [
        value for name, value in vars(names).items() if str(value).startswith("messaging.onceward")
    ]

    assert 10 == len(ours)
    assert set() == set(ours) & set(map(str, KNOWN.values()))


def test_the_schema_is_a_published_one() -> None:
    """The address of the schema is one that the conventions know."""
    assert names.SCHEMA_URL in {schema.value for schema in Schemas}


def test_the_operation_types_are_those_of_the_conventions() -> None:
    """Spans are of the types send, process and settle."""
    known = {kind.value for kind in messaging_attributes.MessagingOperationTypeValues}

    assert {"send", "process", "settle"} <= known


def test_nothing_of_it_is_loaded_without_being_asked_for(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A program that is not instrumented imports neither OpenTelemetry nor the observers."""
    path = tmp_path_factory.mktemp("home") / "a.db"
    ran = subprocess.run(
        [sys.executable, "-c", LOADED, str(path)], capture_output=True, text=True, check=True
    )

    assert "\n" == ran.stdout
