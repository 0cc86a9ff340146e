"""Count the commits of a postbox."""

from collections.abc import Callable

from onceward import Postbox


def commits(box: Postbox) -> Callable[[], int]:
    """Return the call that tells how many commits the writing connection has made since."""
    con, seen = box._db._con, []
    assert con is not None

    def trace(_: object, sql: str, __: object) -> bool:
        seen.append(sql)
        return True

    con.exec_trace = trace
    return lambda: sum(sql == "COMMIT" for sql in seen)
