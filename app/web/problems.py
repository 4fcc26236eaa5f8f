"""How an error is told over HTTP: RFC 9457 problem documents, and one table of statuses."""

from collections.abc import Mapping

import orjson

from app import errors

STATUS: Mapping[type[errors.OncehookError], int] = {
    errors.SignatureMissing: 401,
    errors.SignatureMalformed: 401,
    errors.SignatureMismatch: 401,
    errors.TimestampOutOfTolerance: 401,
    errors.NotJson: 400,
    errors.NotAnEvent: 400,
    errors.UnknownSource: 404,
    errors.MethodNotAllowed: 405,
    errors.BodyTimeout: 408,
    errors.TooLarge: 413,
    errors.UnsupportedEncoding: 415,
    errors.UnsupportedContentType: 415,
    errors.Unavailable: 503,
    errors.Overloaded: 503,
    errors.DeadlineExceeded: 503,
    errors.DatabaseUnavailable: 503,
    errors.ShuttingDown: 503,
}
"""The status of every error that a sender can meet; all others are 500 and a bug."""

RETRY_AFTER_SECONDS = 5

CONTENT_TYPE = "application/problem+json"


def status_of(error: errors.OncehookError) -> int:
    """The status of an error: its own, or that of the nearest class above it."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)


def document(error: errors.OncehookError, status: int) -> bytes:
    """The problem document; its `code` is the reason, from the closed list of `app/errors.py`."""
    title = (type(error).__doc__ or "").strip().split("\n")[0]
    return orjson.dumps(
        {
            "type": "about:blank",
            "title": title,
            "status": status,
            "code": error.code,
            "detail": str(error) or title,
        }
    )
