"""All tables and the guarantees they make, each constraint with its reason; queries live with the features."""

from datetime import date, datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    DateTime,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from app.outcomes import Outcome


def _one_of(column: str, values: type[Outcome]) -> str:
    return f"{column} IN ({', '.join(repr(value.value) for value in values)})"


class Base(DeclarativeBase):
    """Constraint names are fixed, so that an error can be told by the name of what it broke."""

    metadata = MetaData(
        naming_convention={
            "ix": "%(table_name)s_%(column_0_N_name)s_idx",
            "uq": "%(table_name)s_%(column_0_N_name)s_key",
            "ck": "%(table_name)s_%(constraint_name)s_check",
            "pk": "%(table_name)s_pkey",
        }
    )
    type_annotation_map = {  # noqa: RUF012  (SQLAlchemy reads it from the class)
        str: Text,
        int: BigInteger,
        datetime: DateTime(timezone=True),
        bytes: LargeBinary,
        dict[str, Any]: JSONB,
        list[Any]: JSONB,
    }


class ProcessedEvent(Base):
    """The ledger: one row per event ever claimed, so that an event takes effect once.

    Partitioned by `week`, the UTC Monday of the event's own time, which is the same on every retry: so the key is exact
    across partitions, and dropping an old one forgets only weeks below the floor. The table has no other index: its
    newest partitions are the working set of the whole service.
    """

    __tablename__ = "processed_events"

    namespace: Mapped[str]
    event_id: Mapped[str]
    week: Mapped[date]
    type: Mapped[str]
    occurred_at: Mapped[datetime]
    received_at: Mapped[datetime]
    api_version: Mapped[str | None]
    payload_hash: Mapped[bytes]
    """SHA-256 of the canonical event; compared only between bodies of one `api_version`."""
    outcome: Mapped[str]
    duplicates: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    """Deliveries of this event after the one that claimed it."""
    mismatches: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    """Of those, the ones whose payload hash differed under the same API version."""
    last_seen_at: Mapped[datetime | None]
    """When the last duplicate came; None until a later transaction saw one."""

    __table_args__ = (
        PrimaryKeyConstraint("namespace", "event_id", "week"),
        CheckConstraint(_one_of("outcome", Outcome), name="outcome"),
        {"postgresql_partition_by": "RANGE (week)"},
    )


class LedgerFloor(Base):
    """The one horizon: below it no partition exists and nothing is applied. Retention raises it, then drops."""

    __tablename__ = "ledger_floor"

    singleton: Mapped[bool] = mapped_column(Boolean, primary_key=True, server_default=text("true"))
    week: Mapped[date]

    __table_args__ = (CheckConstraint("singleton", name="one_row"),)


class InboxEntry(Base):
    """The raw body of each event as it was signed, with what was decided about it and why.

    Partitioned by the day of arrival and dropped by the day. A duplicate stores nothing here. A parked event that comes
    again, or an expired one, counts an attempt on its row of that day.
    """

    __tablename__ = "inbox"

    arrived_on: Mapped[date]
    namespace: Mapped[str]
    event_id: Mapped[str]
    source: Mapped[str]
    type: Mapped[str]
    object_id: Mapped[str | None]
    occurred_at: Mapped[datetime]
    received_at: Mapped[datetime]
    api_version: Mapped[str | None]
    secret_label: Mapped[str]
    headers: Mapped[dict[str, Any]]
    body: Mapped[bytes]
    pre_hash: Mapped[bytes | None]
    post_hash: Mapped[bytes | None]
    terminal: Mapped[bool | None] = mapped_column(Boolean)
    """Whether the state after the event is one that no other can follow; None where there is no state."""
    outcome: Mapped[str]
    reason: Mapped[str]
    decision: Mapped[dict[str, Any] | None]
    attempts: Mapped[int] = mapped_column(Integer, server_default=text("1"))

    __table_args__ = (
        PrimaryKeyConstraint("arrived_on", "namespace", "event_id"),
        CheckConstraint(_one_of("outcome", Outcome), name="outcome"),
        # Settles ties from the older seconds of an object, and shows an object's timeline.
        Index(None, "namespace", "object_id", "occurred_at", postgresql_where=text("object_id IS NOT NULL")),
        {"postgresql_partition_by": "RANGE (arrived_on)"},
    )


class Subscription(Base):
    """What a subscription is now: a function of the set of events heard of it, whatever their order.

    The columns from `customer` to `items` are the state. `updated_at` is the greatest second heard of, losers included;
    `state_at` is the second of the event whose state the row holds. `edges` are the events of that second, `base` the
    hash of the state before it; `watched` and `open` say that older events may still settle the row, `open` that it is
    undecided. A row with `version` 0 is empty: it lives only inside the transaction that inserted it.
    """

    __tablename__ = "subscriptions"

    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    namespace: Mapped[str]
    external_id: Mapped[str]
    tenant: Mapped[str] = mapped_column(server_default=text("'default'"))
    customer: Mapped[str | None]
    status: Mapped[str | None]
    """The provider's own word; an open set, so no CHECK."""
    plan: Mapped[str | None]
    product: Mapped[str | None]
    quantity: Mapped[int | None]
    unit_amount: Mapped[int | None]
    currency: Mapped[str | None]
    interval: Mapped[str | None]
    interval_count: Mapped[int | None]
    current_period_end: Mapped[datetime | None]
    trial_end: Mapped[datetime | None]
    cancel_at: Mapped[datetime | None]
    cancel_at_period_end: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))
    canceled_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    pause_behavior: Mapped[str | None]
    items: Mapped[list[Any]] = mapped_column(server_default=text("'[]'"))
    created_at: Mapped[datetime | None]
    """Milestone: the object's own creation. Like the two below it goes from null to a time once, with one message."""
    activated_at: Mapped[datetime | None]
    """Milestone: the first event that says `trialing` or `active`."""
    canceled_since: Mapped[datetime | None]
    """Milestone: when the subscription ended, from status `canceled`."""
    updated_at: Mapped[datetime | None]
    state_at: Mapped[datetime | None]
    state_event_id: Mapped[str | None]
    state_hash: Mapped[bytes | None]
    base: Mapped[bytes | None]
    edges: Mapped[list[Any]] = mapped_column(server_default=text("'[]'"))
    watched: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))
    open: Mapped[bool] = mapped_column(Boolean, server_default=text("false"))
    version: Mapped[int] = mapped_column(server_default=text("0"))
    """Rises by one per transition of the state; 1 is the first hearing."""
    recorded_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    """Local time of the last write; for people, never compared."""

    __table_args__ = (
        # One subscription is one row, whoever inserts first.
        UniqueConstraint("namespace", "external_id"),
        CheckConstraint("version = 0 OR (status IS NOT NULL AND updated_at IS NOT NULL)", name="filled"),
        # "What does this customer have?"
        Index(None, "namespace", "customer"),
        # The metric of undecided rows counts these.
        Index("subscriptions_open_idx", "id", postgresql_where=text("open")),
    )


class OutboxMessage(Base):
    """What we owe the outside, committed with the rows it speaks of; `payload` is the whole CloudEvent."""

    __tablename__ = "outbox"

    position: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    """Taken under the subject's row lock, so positions of one subject are in the order of its transitions."""
    message_id: Mapped[Any] = mapped_column(Uuid)
    type: Mapped[str]
    subject: Mapped[str]
    payload: Mapped[dict[str, Any]]
    trace_context: Mapped[dict[str, Any] | None]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))

    __table_args__ = (
        # One fact has one id, and one id is staged once: the guarantee behind every replay.
        UniqueConstraint("message_id"),
    )
