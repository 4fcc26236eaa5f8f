"""Every error of the service: one tree, each leaf with a code from a closed set that is also its metric's label."""


class OncehookError(Exception):
    """The root. `code` is what the sender reads in the problem document; the message holds no payload and no secret."""

    code = "internal_error"


class ConfigurationError(OncehookError):
    """The settings cannot work; the message says which and what to do."""

    code = "configuration"


class RequestError(OncehookError):
    """The request is refused; nothing of it is stored."""

    code = "bad_request"


class SignatureError(RequestError):
    """The request is not proved to come from the provider."""

    code = "signature_mismatch"


class SignatureMissing(SignatureError):
    """There is no signature header."""

    code = "signature_missing"


class SignatureMalformed(SignatureError):
    """The signature header does not have the provider's form."""

    code = "signature_malformed"


class SignatureMismatch(SignatureError):
    """No signature in the header belongs to this body under any of the source's secrets."""

    code = "signature_mismatch"


class TimestampOutOfTolerance(SignatureError):
    """The signed time is further from ours than the source tolerates, in either direction."""

    code = "timestamp_out_of_tolerance"


class PayloadError(RequestError):
    """The bytes are the provider's, but no event."""

    code = "not_an_event"


class NotJson(PayloadError):
    """The body is not JSON, or nested deeper than the limit."""

    code = "not_json"


class NotAnEvent(PayloadError):
    """The body is JSON but lacks what makes it an event."""

    code = "not_an_event"


class UnknownSource(RequestError):
    """No source of this name is configured."""

    code = "unknown_source"


class MethodNotAllowed(RequestError):
    """The route takes another method."""

    code = "method_not_allowed"


class TooLarge(RequestError):
    """The body or its headers are larger than the source's limit."""

    code = "too_large"


class UnsupportedEncoding(RequestError):
    """A Content-Encoding other than identity: signatures cover the bytes as sent."""

    code = "encoding"


class UnsupportedContentType(RequestError):
    """A Content-Type that the provider does not send."""

    code = "content_type"


class BodyTimeout(RequestError):
    """The body did not arrive in time."""

    code = "body_timeout"


class Unavailable(OncehookError):
    """The delivery is not stored; sent again later it will be taken."""

    code = "unavailable"


class Overloaded(Unavailable):
    """The queue or the memory for bodies is full."""

    code = "overloaded"


class DeadlineExceeded(Unavailable):
    """The transaction did not end inside the source's deadline."""

    code = "deadline_exceeded"


class DatabaseUnavailable(Unavailable):
    """PostgreSQL cannot be reached, is read-only, or refuses work."""

    code = "database_unavailable"


class ShuttingDown(Unavailable):
    """The process is stopping and takes no new work."""

    code = "shutting_down"


class ProjectionError(OncehookError):
    """The event's object does not have the shape that its type promises; the delivery is parked."""

    code = "projection_failed"
