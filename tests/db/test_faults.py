"""Which fault an error is: told by real errors of a real server where one can be brought about."""

import asyncpg
import pytest

from app.billing.store import RowMoved
from app.db.engine import CommitUnknown, ConnectionLost
from app.db.faults import Fault, fault_of
from app.errors import NotAnEvent
from tests.service import Rows


@pytest.fixture
async def refused(rows: Rows) -> Rows:
    """A function `refuse(state)` that raises whatever SQLSTATE it is given."""
    await rows.connection.execute(
        "CREATE FUNCTION refuse(state text) RETURNS void LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'refused' USING ERRCODE = state; END $$"
    )
    return rows


FAULTS = {
    "08006": Fault.CONNECTION,
    "21000": Fault.UNAVAILABLE,
    "22021": Fault.DATA,
    "22P02": Fault.DATA,
    "23502": Fault.DATA,
    "23505": Fault.DATA,
    "23514": Fault.PARTITION,  # here without a constraint's name
    "25006": Fault.UNAVAILABLE,
    "25P03": Fault.CONNECTION,
    "40001": Fault.CONFLICT,
    "40P01": Fault.CONFLICT,
    "42501": Fault.UNAVAILABLE,
    "42P01": Fault.UNAVAILABLE,
    "53100": Fault.UNAVAILABLE,
    "53300": Fault.UNAVAILABLE,
    "54000": Fault.DATA,
    "55000": Fault.UNAVAILABLE,
    "55P03": Fault.TIMEOUT,
    "57014": Fault.TIMEOUT,
    "57P01": Fault.CONNECTION,
    "57P02": Fault.CONNECTION,
    "57P03": Fault.UNAVAILABLE,
    "58030": Fault.UNAVAILABLE,
    "XX000": Fault.UNAVAILABLE,
}


async def test_every_state_has_its_fault(refused: Rows) -> None:
    found: dict[str, Fault] = {}
    for state in FAULTS:
        with pytest.raises(asyncpg.PostgresError) as caught:
            await refused.connection.execute("SELECT refuse($1)", state)
        found[state] = fault_of(caught.value)
    assert found == FAULTS


STATEMENTS = {
    "INSERT INTO inbox (arrived_on, namespace, event_id, source, type, occurred_at, received_at, secret_label, headers,"
    " body, outcome, reason) VALUES ('2001-01-01', '', '', '', '', now(), now(), '', '{}', '', 'applied', '')": (
        Fault.PARTITION
    ),
    "INSERT INTO processed_events (namespace, event_id, week, type, occurred_at, received_at, payload_hash, outcome)"
    " VALUES ('', '', '1970-01-05', '', now(), now(), '', 'nonsense')": Fault.DATA,
    "INSERT INTO ledger_floor VALUES (true, now())": Fault.DATA,
    "SELECT 'x'::int": Fault.DATA,
    "SELECT 9223372036854775807 + 1": Fault.DATA,
    "SELECT FROM nowhere": Fault.UNAVAILABLE,
}


@pytest.mark.parametrize("statement", STATEMENTS)
async def test_a_missing_partition_is_told_from_data_that_a_constraint_refuses(rows: Rows, statement: str) -> None:
    with pytest.raises(asyncpg.PostgresError) as caught:
        await rows.connection.execute(statement)
    assert fault_of(caught.value) is STATEMENTS[statement]


async def test_a_value_that_cannot_be_sent_is_data(rows: Rows) -> None:
    with pytest.raises(asyncpg.DataError) as caught:
        await rows.connection.fetch("SELECT $1::bigint", 2**80)
    assert fault_of(caught.value) is Fault.DATA


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (CommitUnknown("x"), Fault.COMMIT_UNKNOWN),
        (ConnectionLost("x"), Fault.CONNECTION),
        (ConnectionResetError(), Fault.CONNECTION),
        (TimeoutError(), Fault.CONNECTION),
        (asyncpg.InterfaceError("the connection is closed"), Fault.CONNECTION),
        (RowMoved("x"), Fault.CONFLICT),
        (NotAnEvent("x"), Fault.BUG),
        (KeyError("x"), Fault.BUG),
    ],
    ids=repr,
)
def test_what_the_server_did_not_say_is_told_by_its_kind(error: Exception, fault: Fault) -> None:
    assert fault_of(error) is fault
