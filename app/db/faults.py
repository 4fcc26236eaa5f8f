"""What kind of fault an error from the database is: the one place that knows SQLSTATEs."""

from enum import StrEnum

import asyncpg

from app.db.engine import LOST, CommitUnknown, ConnectionLost
from app.errors import DatabaseUnavailable


class Conflict(DatabaseUnavailable):
    """Another transaction came between: nothing was written, and it may be tried again at once."""


class Fault(StrEnum):
    """What to do follows from it; the label of the metric."""

    DATA = "data"
    """PostgreSQL refuses a value: the culprit is looked for, and parked."""
    TIMEOUT = "timeout"
    """A lock or a statement took too long: the culprit is looked for, and refused."""
    PARTITION = "partition"
    """No partition takes the row yet."""
    CONFLICT = "conflict"
    """Deadlock, serialisation or a moved row: once more, at once."""
    CONNECTION = "connection"
    """The connection broke before COMMIT: once more on another."""
    COMMIT_UNKNOWN = "commit_unknown"
    """The connection broke during COMMIT: claimed again on another."""
    UNAVAILABLE = "unavailable"
    """The server cannot take writes now."""
    BUG = "bug"
    """Nothing that the database says: an error of our own."""


_BY_KIND: dict[type[Exception], Fault] = {
    CommitUnknown: Fault.COMMIT_UNKNOWN,
    ConnectionLost: Fault.CONNECTION,
    Conflict: Fault.CONFLICT,
}

_BY_CLASS = {
    "08": Fault.CONNECTION,
    "22": Fault.DATA,
    "23": Fault.DATA,
    "25": Fault.UNAVAILABLE,
    "40": Fault.CONFLICT,
    "53": Fault.UNAVAILABLE,
    "54": Fault.DATA,
    "55": Fault.UNAVAILABLE,
    "57": Fault.UNAVAILABLE,
}

_BY_STATE = {
    "25P03": Fault.CONNECTION,  # idle_in_transaction_session_timeout: the server closed the connection
    "55P03": Fault.TIMEOUT,  # lock_not_available
    "57014": Fault.TIMEOUT,  # query_canceled, which is what statement_timeout raises
    "57P01": Fault.CONNECTION,  # admin_shutdown
    "57P02": Fault.CONNECTION,  # crash_shutdown
}


def fault_of(error: BaseException) -> Fault:
    """Classify an error that a transaction raised."""
    if isinstance(error, asyncpg.PostgresError):
        return _fault_of_server(error)
    if isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError):
        return Fault.DATA  # a value that asyncpg cannot send
    if isinstance(error, LOST):
        return Fault.CONNECTION
    return next((fault for kind, fault in _BY_KIND.items() if isinstance(error, kind)), Fault.BUG)


def _fault_of_server(error: asyncpg.PostgresError) -> Fault:
    if isinstance(error, asyncpg.CheckViolationError) and not error.constraint_name:
        return Fault.PARTITION
    state = error.sqlstate or ""
    return _BY_STATE.get(state) or _BY_CLASS.get(state[:2], Fault.UNAVAILABLE)
