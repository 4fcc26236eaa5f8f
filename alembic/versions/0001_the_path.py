"""The ledger, the inbox, subscriptions and the outbox."""

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from alembic import op

revision: str = "0001"
down_revision: str | None = None
branch_labels: str | Sequence[str] | None = None
depends_on: str | Sequence[str] | None = None


def upgrade() -> None:
    """Apply."""
    op.execute("SET LOCAL lock_timeout = '2s'")
    op.create_table(
        "inbox",
        sa.Column("arrived_on", sa.Date(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("object_id", sa.Text(), nullable=True),
        sa.Column("occurred_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("api_version", sa.Text(), nullable=True),
        sa.Column("secret_label", sa.Text(), nullable=False),
        sa.Column("headers", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("pre_hash", sa.LargeBinary(), nullable=True),
        sa.Column("post_hash", sa.LargeBinary(), nullable=True),
        sa.Column("terminal", sa.Boolean(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("decision", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("attempts", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.CheckConstraint(
            "outcome IN ('applied', 'duplicate', 'stale', 'ignored', 'parked', 'expired')",
            name=op.f("inbox_outcome_check"),
        ),
        sa.PrimaryKeyConstraint("arrived_on", "namespace", "event_id", name=op.f("inbox_pkey")),
        postgresql_partition_by="RANGE (arrived_on)",
    )
    op.create_index(
        op.f("inbox_namespace_object_id_occurred_at_idx"),
        "inbox",
        ["namespace", "object_id", "occurred_at"],
        unique=False,
        postgresql_where=sa.text("object_id IS NOT NULL"),
    )
    op.create_table(
        "ledger_floor",
        sa.Column("singleton", sa.Boolean(), server_default=sa.text("true"), nullable=False),
        sa.Column("week", sa.Date(), nullable=False),
        sa.CheckConstraint("singleton", name=op.f("ledger_floor_one_row_check")),
        sa.PrimaryKeyConstraint("singleton", name=op.f("ledger_floor_pkey")),
    )
    op.create_table(
        "outbox",
        sa.Column("position", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("message_id", sa.Uuid(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("payload", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("trace_context", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("position", name=op.f("outbox_pkey")),
        sa.UniqueConstraint("message_id", name=op.f("outbox_message_id_key")),
    )
    op.create_table(
        "processed_events",
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("week", sa.Date(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("occurred_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("received_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("api_version", sa.Text(), nullable=True),
        sa.Column("payload_hash", sa.LargeBinary(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=False),
        sa.Column("duplicates", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("mismatches", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("last_seen_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "outcome IN ('applied', 'duplicate', 'stale', 'ignored', 'parked', 'expired')",
            name=op.f("processed_events_outcome_check"),
        ),
        sa.PrimaryKeyConstraint("namespace", "event_id", "week", name=op.f("processed_events_pkey")),
        postgresql_partition_by="RANGE (week)",
    )
    op.create_table(
        "subscriptions",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("external_id", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), server_default=sa.text("'default'"), nullable=False),
        sa.Column("customer", sa.Text(), nullable=True),
        sa.Column("status", sa.Text(), nullable=True),
        sa.Column("plan", sa.Text(), nullable=True),
        sa.Column("product", sa.Text(), nullable=True),
        sa.Column("quantity", sa.BigInteger(), nullable=True),
        sa.Column("unit_amount", sa.BigInteger(), nullable=True),
        sa.Column("currency", sa.Text(), nullable=True),
        sa.Column("interval", sa.Text(), nullable=True),
        sa.Column("interval_count", sa.BigInteger(), nullable=True),
        sa.Column("current_period_end", sa.DateTime(timezone=True), nullable=True),
        sa.Column("trial_end", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancel_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("cancel_at_period_end", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("canceled_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("pause_behavior", sa.Text(), nullable=True),
        sa.Column("items", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("activated_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("canceled_since", sa.DateTime(timezone=True), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("state_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("state_event_id", sa.Text(), nullable=True),
        sa.Column("state_hash", sa.LargeBinary(), nullable=True),
        sa.Column("base", sa.LargeBinary(), nullable=True),
        sa.Column("edges", postgresql.JSONB(astext_type=sa.Text()), server_default=sa.text("'[]'"), nullable=False),
        sa.Column("watched", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("open", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("version", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("recorded_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint(
            "version = 0 OR (status IS NOT NULL AND updated_at IS NOT NULL)", name=op.f("subscriptions_filled_check")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("subscriptions_pkey")),
        sa.UniqueConstraint("namespace", "external_id", name=op.f("subscriptions_namespace_external_id_key")),
    )
    op.create_index(
        op.f("subscriptions_namespace_customer_idx"), "subscriptions", ["namespace", "customer"], unique=False
    )
    op.create_index("subscriptions_open_idx", "subscriptions", ["id"], unique=False, postgresql_where=sa.text("open"))
    op.execute(
        "CREATE TABLE processed_events_forever PARTITION OF processed_events "
        "FOR VALUES FROM ('1970-01-05') TO ('1970-01-12')"
    )
    # No history is known yet, and providers resend for at most 30 days: older events are told to be expired.
    op.execute(
        "INSERT INTO ledger_floor (week) "
        "SELECT date_trunc('week', (now() AT TIME ZONE 'UTC') - interval '35 days')::date"
    )


def downgrade() -> None:
    """Undo."""
    op.drop_index("subscriptions_open_idx", table_name="subscriptions", postgresql_where=sa.text("open"))
    op.drop_index(op.f("subscriptions_namespace_customer_idx"), table_name="subscriptions")
    op.drop_table("subscriptions")
    op.drop_table("processed_events")
    op.drop_table("outbox")
    op.drop_table("ledger_floor")
    op.drop_index(
        op.f("inbox_namespace_object_id_occurred_at_idx"),
        table_name="inbox",
        postgresql_where=sa.text("object_id IS NOT NULL"),
    )
    op.drop_table("inbox")
