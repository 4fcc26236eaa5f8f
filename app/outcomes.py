"""The closed sets every delivery is answered with: an outcome and the reason for it."""

from enum import StrEnum


class Outcome(StrEnum):
    """What became of a delivery; stored in the ledger and the inbox, and sent in the answer."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    STALE = "stale"
    IGNORED = "ignored"
    PARKED = "parked"
    EXPIRED = "expired"


class Reason(StrEnum):
    """Why a delivery got its outcome; the label of its metric and what `explain` shows."""

    # applied
    NEWER = "newer"
    """The event is of a later second than all that was heard of its object."""
    FIRST_HEARD = "first_heard"
    """The event is the first that was heard of its object."""
    SETTLED = "settled"
    """The event decided between several of one second, or an older event settled an open row."""
    TERMINAL = "terminal"
    """The event brought a terminal state, which wins over any other."""
    ABSORBED = "absorbed"
    """The event is later than the row's terminal state, which stays; only `updated_at` rose."""

    # stale
    OLDER = "older"
    """A later second of this object was heard before."""
    TIE_LOST = "tie_lost"
    """Another event of the same second decides the row."""
    TERMINAL_STANDS = "terminal_stands"
    """The row is in a terminal state and the event is not."""

    # duplicate
    SEEN_BEFORE = "seen_before"
    """The ledger holds this event."""
    THIN_TWIN_KNOWN = "thin_twin_known"
    """A thin event whose snapshot twin is in the ledger."""

    # ignored
    NO_PROJECTION = "no_projection"
    """The event's type changes none of our rows."""
    NO_OBJECT_ID = "no_object_id"
    """The event's object carries no id, so no row can be meant."""
    WRONG_MODE = "wrong_mode"
    """The event's live or test mode is not the one that its source expects."""
    NAME_MISMATCH = "name_mismatch"
    """The event's name, which nobody signed, is not that of an event with this body."""
    THIN_WAITS_FOR_SNAPSHOT = "thin_waits_for_snapshot"
    """A thin event; the snapshot event of the same change, when it comes, is applied."""

    # parked
    PROJECTION_FAILED = "projection_failed"
    """The event's object does not have the shape that its type promises."""
    DATA_REFUSED = "data_refused"
    """PostgreSQL refused a value of the event (SQLSTATE class 22 or 23)."""
    TIME_AHEAD = "time_ahead"
    """The event's own time is more than eight days ahead of ours."""

    # expired
    BELOW_FLOOR = "below_floor"
    """The event is older than the ledger remembers, so it cannot be told from a repeat."""
