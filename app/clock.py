"""The one place that asks the machine for the time; everything else takes `now` as a parameter."""

from datetime import UTC, date, datetime, timedelta


def utc_now() -> datetime:
    """The current time, aware, in UTC."""
    return datetime.now(UTC)


def monday_of(moment: datetime) -> date:
    """The Monday of the UTC week that holds `moment`: the ledger's partition key."""
    day = moment.astimezone(UTC).date()
    return day - timedelta(days=day.weekday())
