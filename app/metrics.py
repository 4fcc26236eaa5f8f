"""Every metric of the service. With several workers each writes to its own file, and one scrape sums them."""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest, multiprocess

REGISTRY = CollectorRegistry()

_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

DELIVERIES = Counter(
    "oncehook_deliveries",
    "Verified deliveries whose transaction was committed",
    ("source", "outcome", "reason"),
    registry=REGISTRY,
)
REFUSED = Counter(
    "oncehook_refused",
    "Requests answered with an error, by the error's code; source is `unknown` where there is none of that name",
    ("source", "code"),
    registry=REGISTRY,
)
UNRECOVERABLE_503 = Counter(
    "oncehook_unrecoverable_503",
    "503 answers to senders that never try again; what the process still holds it goes on trying to store",
    ("source",),
    registry=REGISTRY,
)
PAYLOAD_MISMATCHES = Counter(
    "oncehook_payload_mismatches",
    "Duplicates whose content differed from the first delivery's under the same API version",
    ("source",),
    registry=REGISTRY,
)
TIES_UNDECIDED = Gauge(
    "oncehook_ties_undecided",
    "Rows whose events of one second do not prove which state stands",
    registry=REGISTRY,
    multiprocess_mode="mostrecent",
)
BATCH_SIZE = Histogram(
    "oncehook_batch_size",
    "Deliveries that shared one transaction",
    buckets=(1, 2, 4, 8, 16, 32, 64, 128),
    registry=REGISTRY,
)
BATCH_FAULTS = Counter(
    "oncehook_batch_faults",
    "Transactions that failed, by kind of fault; the members were tried again, halved, parked or refused",
    ("fault",),
    registry=REGISTRY,
)
COMMIT_SECONDS = Histogram(
    "oncehook_commit_seconds",
    "From BEGIN to the answer to COMMIT",
    buckets=_FAST,
    registry=REGISTRY,
)
ANSWER_SECONDS = Histogram(
    "oncehook_answer_seconds",
    "From the last body byte to the answer, verified deliveries only",
    ("source",),
    buckets=_FAST,
    registry=REGISTRY,
)
LAG = Histogram(
    "oncehook_event_lag_seconds",
    "From the event's own time to the COMMIT that applied it",
    ("source",),
    buckets=(1, 2, 5, 10, 30, 60, 300, 1800, 7200, 43200, 259200),
    registry=REGISTRY,
)
QUEUED = Gauge(
    "oncehook_queue_events",
    "Deliveries waiting for a transaction",
    registry=REGISTRY,
    multiprocess_mode="livesum",
)
BYTES_IN_FLIGHT = Gauge(
    "oncehook_bytes_in_flight",
    "Bytes of bodies that are being read or wait for their transaction",
    registry=REGISTRY,
    multiprocess_mode="livesum",
)


def exposition() -> bytes:
    """The text format of all metrics, of this process or, with PROMETHEUS_MULTIPROC_DIR, summed over all workers."""
    if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
