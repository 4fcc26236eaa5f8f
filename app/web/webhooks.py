"""`POST /webhooks/{source}`: the door of the path, a plain ASGI callable because it is the hot one."""

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import orjson
import structlog

from app import metrics
from app.errors import (
    DeadlineExceeded,
    MethodNotAllowed,
    OncehookError,
    TooLarge,
    Unavailable,
    UnknownSource,
    UnsupportedContentType,
    UnsupportedEncoding,
)
from app.inbox.batch import Batcher
from app.inbox.receive import Answer
from app.providers.base import Provider, Request, Source
from app.web import problems
from app.web.body import ClientGone, Memory, Receive, Reservation, read_body, too_large

Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers: TypeAlias = Sequence[tuple[bytes, bytes]]

PREFIX = "/webhooks/"
MAX_HEADER_BYTES = 32_768
"""Names and values of one request's headers; no provider comes near it."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_NOT_READ = (MethodNotAllowed, UnknownSource, TooLarge, UnsupportedEncoding, UnsupportedContentType, Unavailable)
"""Errors that may leave a body unread: the connection is closed, or the rest would be taken for the next request."""

log = structlog.get_logger()


@dataclass(slots=True)
class Webhooks:
    """The endpoint and what it needs; one instance a process."""

    sources: Mapping[str, Source]
    providers: Mapping[str, Provider]
    batcher: Batcher
    memory: Memory
    clock: Callable[[], datetime]
    body_timeout_seconds: float

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request; the slash at the end of its path makes no difference."""
        name = scope["path"][len(PREFIX) :].removesuffix("/")
        source = self.sources.get(name)
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        request_id = _request_id(scope["headers"])
        reservation = Reservation(self.memory)
        queued = False
        try:
            source = self._found(name)
            provider = self.providers[source.provider]
            _check_head(scope["method"], headers, source, provider)
            reservation.grow_to(int(headers.get("content-length", "0")))
            body = await read_body(
                receive, reservation, max_bytes=source.max_body_bytes, timeout_seconds=self.body_timeout_seconds
            )
            loop = asyncio.get_running_loop()
            arrived = loop.time()
            deadline = arrived + source.deadline_seconds
            delivery = provider.read(source, Request(headers, body), self.clock())
            future = self.batcher.submit(
                delivery, deadline=deadline, kept=not provider.retries, released=reservation.release
            )
            queued = True
            answer = await _within(deadline, future)
            metrics.ANSWER_SECONDS.labels(source.name).observe(loop.time() - arrived)
            await _send(send, 200, _accepted(answer), request_id, b"application/json", ())
        except ClientGone:
            metrics.REFUSED.labels(name if source else "unknown", "client_gone").inc()
        except OncehookError as error:
            await self._refuse(send, source, error, request_id)
        except Exception as error:  # noqa: BLE001  (an error of ours: nothing is stored, and nothing of it is told)
            log.error(  # noqa: TRY400  (a traceback could quote the payload)
                "request_failed", source=name if source else "unknown", error=type(error).__name__
            )
            await self._refuse(send, source, Unavailable("the delivery could not be taken"), request_id)
        finally:
            if not queued:
                reservation.release()

    def _found(self, name: str) -> Source:
        if name not in self.sources:
            message = "no source of this name is configured"
            raise UnknownSource(message)
        return self.sources[name]

    async def _refuse(self, send: Send, source: Source | None, error: OncehookError, request_id: bytes) -> None:
        status = problems.status_of(error)
        label = source.name if source else "unknown"
        metrics.REFUSED.labels(label, error.code).inc()
        unavailable = isinstance(error, Unavailable)
        if unavailable and source is not None and not self.providers[source.provider].retries:
            metrics.UNRECOVERABLE_503.labels(label).inc()
        log.info("delivery_refused", source=label, code=error.code, status=status, request_id=request_id.decode())
        extra: list[tuple[bytes, bytes]] = []
        if unavailable:
            extra.append((b"retry-after", str(problems.RETRY_AFTER_SECONDS).encode()))
        if isinstance(error, MethodNotAllowed):
            extra.append((b"allow", b"POST"))
        if isinstance(error, _NOT_READ) or status == 408:  # noqa: PLR2004
            extra.append((b"connection", b"close"))
        content_type = problems.CONTENT_TYPE.encode()
        await _send(send, status, problems.document(error, status), request_id, content_type, extra)


async def _within(deadline: float, future: asyncio.Future[Answer]) -> Answer:
    """The answer, if it comes by the deadline; the transaction is never cancelled, only the waiting for it.

    Raises:
        DeadlineExceeded: it did not come.
    """
    try:
        async with asyncio.timeout_at(deadline):
            return await future
    except TimeoutError as error:
        message = "the delivery was not stored inside the deadline"
        raise DeadlineExceeded(message) from error


def _check_head(method: str, headers: Mapping[str, str], source: Source, provider: Provider) -> None:
    """Refuse by the request's head alone, before a byte of the body is read."""
    if method != "POST":
        message = f"{method} is not allowed here, POST is"
        raise MethodNotAllowed(message)
    if sum(len(key) + len(value) for key, value in headers.items()) > MAX_HEADER_BYTES:
        message = f"the headers are larger than {MAX_HEADER_BYTES} bytes"
        raise TooLarge(message)
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or len(length) > 18 or int(length) > source.max_body_bytes:  # noqa: PLR2004
        raise too_large(source.max_body_bytes)
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        message = "the body must come as it was signed, without a Content-Encoding"
        raise UnsupportedEncoding(message)
    content_type = headers.get("content-type")
    if content_type is not None and content_type.partition(";")[0].strip().lower() not in provider.content_types:
        message = f"the Content-Type must be one of: {', '.join(sorted(provider.content_types))}"
        raise UnsupportedContentType(message)


def _accepted(answer: Answer) -> bytes:
    told: dict[str, str] = {"outcome": answer.outcome, "event_id": answer.event_id}
    if answer.reason is not None:
        told["reason"] = answer.reason
    return orjson.dumps(told)


def _request_id(headers: Headers) -> bytes:
    """The caller's own id for tracing, or a new one. It is never an idempotency key."""
    for key, value in headers:
        if key == b"x-request-id" and _REQUEST_ID.fullmatch(value):
            return value
    return secrets.token_hex(8).encode()


async def _send(
    send: Send,
    status: int,
    body: bytes,
    request_id: bytes,
    content_type: bytes,
    extra: Sequence[tuple[bytes, bytes]],
) -> None:
    headers = [
        (b"content-type", content_type),
        (b"content-length", str(len(body)).encode()),
        (b"x-request-id", request_id),
        *extra,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
