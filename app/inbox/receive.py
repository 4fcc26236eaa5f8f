"""The transaction: claim, apply, record, stage, COMMIT, for a list of verified deliveries."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from app import metrics
from app.billing import store as billing
from app.billing.changes import SubscriptionState
from app.billing.rows import Decision
from app.db.engine import Connection, Database, Timeouts
from app.errors import ProjectionError
from app.inbox import store as inbox
from app.inbox.store import Claim, Claims
from app.outbox import store as outbox
from app.outbox.messages import Message, provider_event
from app.outcomes import Outcome, Reason
from app.providers.base import Delivery, Ignored, Provider, Source
from app.providers.json_body import as_stored

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Answer:
    """What the sender of one delivery is told; `reason` is None where only the ledger remembers the outcome."""

    event_id: str
    outcome: Outcome
    reason: Reason | None


@dataclass(frozen=True, slots=True)
class Receiver:
    """What the transaction needs besides its deliveries: who sends, through which inlets, and for how long to keep."""

    database: Database
    providers: Mapping[str, Provider]
    sources: Mapping[str, Source]
    clock: Callable[[], datetime]
    payload_retention: timedelta

    async def receive(
        self, deliveries: Sequence[Delivery], timeouts: Timeouts, *, refused: bool = False, again: bool = False
    ) -> list[Answer]:
        """Give each delivery its effect, once, and say which, in the order given.

        With `refused`, PostgreSQL refused the data of these before: they are recorded as parked and change no row.
        With `again`, the answer to their COMMIT was lost.

        Raises:
            DatabaseUnavailable, asyncpg.PostgresError: nothing stands, but for a `CommitUnknown`.
        """
        now = self.clock()
        async with self.database.begin(timeouts) as connection:
            claims = await inbox.claim(connection, deliveries, now, again=again)
            messages = await self._decide(connection, claims, refused=refused)
            await inbox.record(connection, claims, now.date(), (now - self.payload_retention).date())
            await outbox.stage(connection, [*messages, *_provider_events(claims)])
        _tell(claims, self.clock())
        return _answers(claims, len(deliveries))

    async def _decide(self, connection: Connection, claims: Claims, *, refused: bool) -> list[Message]:
        """Find out what each fresh event means, and apply what means a change; the messages are in the same order."""
        changing: list[Claim] = []
        undecided = [claim for claim in claims.fresh if claim.reason is None]
        for claim in undecided:
            if refused:
                claim.decide(Outcome.PARKED, Reason.DATA_REFUSED)
            elif self._means_a_change(claim):
                changing.append(claim)
        await self._answer_thin(connection, undecided)
        changes = [claim.change for claim in changing if claim.change is not None]
        tenants = {claim.delivery.namespace: claim.delivery.source.tenant for claim in changing}
        decisions = await billing.apply(connection, changes, tenants=tenants, recall=self._recall)
        messages: list[Message] = []
        for place, claim in enumerate(changing):
            decision = decisions[place]
            if isinstance(decision, Decision):
                claim.decide(decision.outcome, decision.reason, decision.explanation)
                messages.extend(decision.messages)
            else:
                _park(claim, decision)
        return messages

    def _means_a_change(self, claim: Claim) -> bool:
        """Ask the provider; an event that its pure code cannot read is parked and never hurts a neighbour."""
        try:
            meaning = self.providers[claim.delivery.provider].changes(claim.delivery)
        except Exception as error:  # noqa: BLE001  (poison stays alone)
            _park(claim, error)
            return False
        if isinstance(meaning, Ignored):
            claim.decide(Outcome.IGNORED, meaning.reason)
            return False
        (claim.change,) = meaning
        return True

    async def _answer_thin(self, connection: Connection, claims: Sequence[Claim]) -> None:
        """A thin event whose snapshot twin was heard says nothing new."""
        thin = [claim for claim in claims if claim.delivery.twin_id is not None and claim.outcome == Outcome.IGNORED]
        twins = await inbox.known_twins(connection, thin)
        for claim in thin:
            if (claim.delivery.namespace, claim.delivery.twin_id) in twins:
                claim.decide(Outcome.DUPLICATE, Reason.THIN_TWIN_KNOWN)

    def _recall(self, source: str, body: bytes) -> SubscriptionState:
        """The state that a stored body says, read by the source that it came through.

        Raises:
            KeyError: there is no source of that name any more.
            ProjectionError: the event is no change any more.
        """
        known = self.sources[source]
        provider = self.providers[known.provider]
        delivery = provider.recall(known, body, self.clock())
        meaning = provider.changes(delivery)
        if isinstance(meaning, Ignored):
            message = f"a stored event is not a change any more: {meaning.reason}"
            raise ProjectionError(message)
        (change,) = meaning
        return change.state


def _provider_events(claims: Claims) -> list[Message]:
    """A message for each event that the ledger has just learnt of, where its source asks for it."""
    return [
        provider_event(
            claim.delivery.namespace,
            claim.delivery.event_id,
            time=claim.delivery.occurred_at,
            data={
                "source": claim.delivery.source.name,
                "tenant": claim.delivery.source.tenant,
                "provider": claim.delivery.provider,
                "namespace": claim.delivery.namespace,
                "event_id": claim.delivery.event_id,
                "type": claim.delivery.type,
                "object_id": claim.delivery.object_id,
                "occurred_at": claim.delivery.occurred_at,
                "api_version": claim.delivery.api_version,
                "payload": as_stored(claim.delivery.event),
            },
        )
        for claim in claims.fresh
        if claim.in_ledger and claim.delivery.source.publish_events
    ]


def _park(claim: Claim, error: Exception) -> None:
    """Park an event; what went wrong is told by its class and, where the message is ours, by the message."""
    detail = str(error) if isinstance(error, ProjectionError) else None
    claim.change = None
    claim.decide(Outcome.PARKED, Reason.PROJECTION_FAILED, {"error": type(error).__name__, "detail": detail})


def _answers(claims: Claims, count: int) -> list[Answer]:
    """One answer a place: the first delivery of an event gets its outcome, the others of the batch are duplicates."""
    answers: list[Answer | None] = [None] * count
    for claim in claims.all:
        first, *copies = claim.places
        answers[first] = Answer(claim.delivery.event_id, claim.outcome, claim.reason)
        for place in copies:
            answers[place] = Answer(claim.delivery.event_id, Outcome.DUPLICATE, Reason.SEEN_BEFORE)
    return [answer for answer in answers if answer is not None]


def _tell(claims: Claims, committed_at: datetime) -> None:
    """Count and log what was committed: one line a batch, and one per delivery that was not applied."""
    applied = 0
    for claim in claims.all:
        delivery, source = claim.delivery, claim.delivery.source.name
        reason = claim.reason or "committed_before"
        metrics.DELIVERIES.labels(source, claim.outcome, reason).inc()
        if len(claim.places) > 1:
            metrics.DELIVERIES.labels(source, Outcome.DUPLICATE, Reason.SEEN_BEFORE).inc(len(claim.places) - 1)
        if claim.mismatch:
            metrics.PAYLOAD_MISMATCHES.labels(source).inc()
        if claim.outcome == Outcome.APPLIED:
            applied += 1
            metrics.LAG.labels(source).observe(max((committed_at - delivery.occurred_at).total_seconds(), 0))
        else:
            log.info(
                "delivery_not_applied",
                source=source,
                namespace=delivery.namespace,
                event_id=delivery.event_id,
                type=delivery.type,
                object_id=delivery.object_id,
                outcome=claim.outcome,
                reason=reason,
                payload_mismatch=claim.mismatch,
            )
    log.info("batch_committed", deliveries=sum(len(claim.places) for claim in claims.all), applied=applied)
