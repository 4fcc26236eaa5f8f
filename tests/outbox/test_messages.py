"""A message's id derives from what it says, and from nothing else."""

from datetime import UTC, datetime
from uuid import UUID

from app.outbox.messages import milestone, rfc3339, state_message

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SUBJECT = "subscription/stripe:self:test/sub_1"


def test_a_milestone_has_one_id_for_ever_whatever_its_time_and_data() -> None:
    one = milestone("subscription.created", SUBJECT, anchor=SUBJECT, time=NOW, data={})
    other = milestone("subscription.created", SUBJECT, anchor=SUBJECT, time=NOW.replace(year=2027), data={"a": 1})
    assert one.message_id == other.message_id == UUID("6870b268-a98b-5afd-a167-4389daaf6194")
    assert one.payload["id"] == str(one.message_id)


def test_other_facts_have_other_ids() -> None:
    made = [
        milestone("subscription.created", SUBJECT, anchor=SUBJECT, time=NOW, data={}),
        milestone("subscription.canceled", SUBJECT, anchor=SUBJECT, time=NOW, data={}),
        milestone("subscription.created", SUBJECT, anchor=f"{SUBJECT}x", time=NOW, data={}),
        state_message("subscription.updated", SUBJECT, version=2, time=NOW, data={}),
        state_message("subscription.updated", SUBJECT, version=3, time=NOW, data={}),
        state_message("subscription.updated", f"{SUBJECT}x", version=3, time=NOW, data={}),
    ]
    assert len({message.message_id for message in made}) == len(made)


def test_a_message_is_a_cloud_event() -> None:
    message = state_message("subscription.updated", SUBJECT, version=2, time=NOW, data={"version": 2})
    assert message.payload == {
        "specversion": "1.0",
        "id": str(message.message_id),
        "source": "/oncehook",
        "type": "subscription.updated",
        "subject": SUBJECT,
        "time": "2026-01-01T00:00:00Z",
        "datacontenttype": "application/json",
        "data": {"version": 2},
    }
    assert rfc3339(None) is None
