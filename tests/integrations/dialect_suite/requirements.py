"""List the features of the dialect for the suite; each gap has its reason."""

from typing import Any, Final

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

from onceward.integrations.sqlalchemy.dialect import LEVELS

PRESENT: Final = (
    "autocommit",
    "computed_columns",
    "computed_columns_reflect_persisted",
    "computed_columns_stored",
    "computed_columns_virtual",
    "ctes",
    "ctes_on_dml",
    "ctes_with_update_delete",
    "dbapi_lastrowid",
    "delete_returning",
    "foreign_key_constraint_name_reflection",
    "insert_returning",
    "isolation_level",
    "json_type",
    "reflect_table_options",
    "reflects_pk_names",
    "regexp_match",
    "savepoints",
    "skip_autocommit_rollback",
    "temp_table_names",
    "tuple_in",
    "unique_constraint_reflection",
    "update_returning",
    "views",
    "window_functions",
)
"""Features that the suite leaves out unless a dialect says that it has them."""
ABSENT: Final = {
    "schemas": "a second file would be attached to the connection that the process shares",
    "schema_reflection": "as above",
    "implicitly_named_constraints": "SQLite gives no names",
    "independent_connections": "one thread has one transaction: a second one is refused",
    "server_side_cursors": "a cursor has read all its rows; asyncio streams them from memory",
    "order_by_col_from_union": "SQLite has no brackets in compound selects",
    "parens_in_union_contained_select_w_limit_offset": "as above",
    "parens_in_union_contained_select_wo_limit_offset": "as above",
}
"""Features that the suite takes for granted, and why they are not there."""


class Requirements(SuiteRequirements):
    """The features of the dialect."""

    def get_isolation_levels(self, _config: Any) -> dict[str, Any]:
        """Return the levels, the default first."""
        return {"default": "SERIALIZABLE", "supported": [*LEVELS]}


def _always(rule: Any) -> property:
    return property(lambda _: rule)


for _name in PRESENT:
    setattr(Requirements, _name, _always(exclusions.open()))  # type: ignore[no-untyped-call]
for _name in ABSENT:
    setattr(Requirements, _name, _always(exclusions.closed()))  # type: ignore[no-untyped-call]
