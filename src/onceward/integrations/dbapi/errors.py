"""The errors of PEP 249, and which of them an error of SQLite or of ours becomes."""

from __future__ import annotations

from pathlib import Path

import apsw

from onceward.errors import OncewardError, OutcomeUnknown, StoreCorrupt, StoreError
from onceward.file.connection import translate_error


class Warning(Exception):  # noqa: A001 - PEP 249 names it
    """Never raised; PEP 249 asks for it."""


class Error(Exception):
    """Root of the errors that the ORM wraps; its cause is the error that it stands for."""


class InterfaceError(Error):
    """The engine was not made by ``engine(box)``."""


class DatabaseError(Error):
    """The file or a statement failed."""


class DataError(DatabaseError):
    """A value is too large for SQLite."""


class OperationalError(DatabaseError):
    """SQLite refused a statement, or the file failed; nothing of the transaction was written."""


class IntegrityError(DatabaseError):
    """A constraint refuses a row."""


class InternalError(DatabaseError):
    """SQLite reported a bug of its own."""


class ProgrammingError(DatabaseError):
    """The call is wrong: correct what the message names."""


class WrongThread(ProgrammingError):
    """A transaction was used in another thread than the one that began it."""


class NotSupportedError(DatabaseError):
    """SQLite cannot do it."""


def pep249(error: BaseException, path: Path) -> BaseException:
    """
    Return the error that the ORM is to see.

    ``OutcomeUnknown`` stays itself: an OperationalError would say that nothing was written.
    So do errors of messages.
    """
    meant = translate_error(error, path)
    match meant:
        case Error() | OutcomeUnknown():
            return meant
        case StoreCorrupt():
            kind: type[Error] = DatabaseError
        case StoreError():
            kind = OperationalError
        case OncewardError():
            return meant
        case apsw.ConstraintError() | apsw.MismatchError():
            kind = IntegrityError
        case apsw.TooBigError() | OverflowError():
            kind = DataError
        case apsw.BindingsError() | apsw.RangeError() | apsw.MisuseError() | TypeError():
            kind = ProgrammingError
        case apsw.InternalError():
            kind = InternalError
        case apsw.Error():
            kind = OperationalError
        case _:
            return meant
    made = kind(str(meant))
    made.__cause__ = meant
    return made
