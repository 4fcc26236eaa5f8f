"""A subscription's row in memory, and what follows from a step of it: the explanation and the messages. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from app.billing.changes import SubscriptionChange, SubscriptionState, columns_of
from app.billing.order import Milestones, Standing, Step, milestones_after
from app.outbox.messages import Message, milestone, rfc3339, state_message
from app.outcomes import Outcome, Reason


@dataclass(frozen=True, slots=True)
class SubscriptionRow:
    """One row as it was read under its lock, or as it will be written."""

    id: int
    namespace: str
    external_id: str
    tenant: str
    standing: Standing
    state: SubscriptionState | None
    milestones: Milestones

    @property
    def subject(self) -> str:
        """What its messages are about."""
        return f"subscription/{self.namespace}/{self.external_id}"


@dataclass(frozen=True, slots=True)
class Decision:
    """What one event came to: the row after it, the answer, the explanation for the operator, and the messages."""

    outcome: Outcome
    reason: Reason
    explanation: Mapping[str, Any]
    messages: tuple[Message, ...] = ()


def advance(
    row: SubscriptionRow, change: SubscriptionChange, step: Step, state: SubscriptionState
) -> tuple[SubscriptionRow, Decision]:
    """The row after `step`, whose state is `state`, and what is to be said about it."""
    after = replace(
        row,
        standing=step.standing,
        state=state,
        milestones=milestones_after(row.milestones, change),
    )
    messages = tuple(_messages(row, after, change, transition=step.transition))
    return after, Decision(step.outcome, step.reason, _explanation(row, after, messages), messages)


def _messages(
    before: SubscriptionRow, after: SubscriptionRow, change: SubscriptionChange, *, transition: bool
) -> Iterator[Message]:
    data = _data(after)
    reached = {
        "subscription.created": (before.milestones.created, after.milestones.created),
        "subscription.activated": (before.milestones.activated, after.milestones.activated),
        "subscription.canceled": (before.milestones.canceled, after.milestones.canceled),
    }
    if transition and before.state is not None:
        yield state_message(
            "subscription.updated",
            after.subject,
            version=after.standing.version,
            time=change.occurred_at,
            data={**data, "previous": _changed(before.state, after.state)},
        )
    for type_, (known, time) in reached.items():
        if known is None and time is not None:
            yield milestone(type_, after.subject, anchor=after.subject, time=time, data=data)


def _data(row: SubscriptionRow) -> dict[str, Any]:
    return {
        "namespace": row.namespace,
        "external_id": row.external_id,
        "tenant": row.tenant,
        "version": row.standing.version,
        **({} if row.state is None else columns_of(row.state)),
        "created_at": row.milestones.created,
        "activated_at": row.milestones.activated,
        "canceled_since": row.milestones.canceled,
        "updated_at": row.standing.updated_at,
    }


def _changed(before: SubscriptionState, after: SubscriptionState | None) -> dict[str, Any]:
    """The old values of the columns that differ."""
    return {name: old for name, old in columns_of(before).items() if old != getattr(after, name, None)}


def _explanation(before: SubscriptionRow, after: SubscriptionRow, messages: tuple[Message, ...]) -> dict[str, Any]:
    standing, was = after.standing, before.standing
    winner = standing.winner
    return {
        "row": after.subject,
        "version": [was.version, standing.version],
        "status": [before.state and before.state.status, after.state and after.state.status],
        "against": was.winner and was.winner.event_id,
        "against_at": was.winner and rfc3339(was.winner.occurred_at),
        "winner": winner and winner.event_id,
        "winner_at": winner and rfc3339(winner.occurred_at),
        "tie": [event.event_id for event in standing.events] if len(standing.events) > 1 else [],
        "watched": standing.watched,
        "open": standing.open,
        "messages": [message.type for message in messages],
    }
