"""Stage messages in the outbox, in the transaction of the rows they speak of."""

from collections.abc import Sequence

import orjson

from app.db.engine import Connection
from app.outbox.messages import Message

_STAGE = """
INSERT INTO outbox (message_id, type, subject, payload, trace_context)
SELECT message_id, type, subject, payload, trace_context
FROM json_to_recordset($1::json)
  AS staged (place int, message_id uuid, type text, subject text, payload jsonb, trace_context jsonb)
ORDER BY place
ON CONFLICT (message_id) DO NOTHING
"""


async def stage(connection: Connection, messages: Sequence[Message]) -> None:
    """Insert messages in the order given; one whose id is known already is left as it was. Waits for no lock.

    The caller holds the lock of every subject's row, so positions of one subject are in the order of its transitions.
    """
    if not messages:
        return
    staged = [
        {
            "place": place,
            "message_id": message.message_id,
            "type": message.type,
            "subject": message.subject,
            "payload": message.payload,
            "trace_context": message.trace_context,
        }
        for place, message in enumerate(messages)
    ]
    await connection.execute(_STAGE, orjson.dumps(staged, option=orjson.OPT_UTC_Z).decode())
