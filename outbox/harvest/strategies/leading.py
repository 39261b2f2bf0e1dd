"""Retries a term's work after errors until the term is over, the same for every strategy."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import KafkaException

from holdfast.clock import Backoff
from holdfast.errors import FencedError, HoldfastError, OutboxDatabaseError, OutboxDroppedError
from holdfast.outbox.harvest.publishing.publisher import PublishStopped
from holdfast.outbox.harvest.shard.shard import Term
from holdfast.outbox.harvest.shard.worker_thread import Abandoned

BACKOFF = Backoff(0.1, 5.0)


def _kind(error: Exception) -> str:
    if isinstance(error, OutboxDatabaseError):
        return "database"
    return "fenced" if isinstance(error, FencedError) else "broker"


def lead_on(term: Term, lead: Callable[[], None], producer: str) -> None:
    """Call *lead*, which leads until `stop`, again after each error: that costs a pause, never
    the term.

    Pauses grow while nothing is published in between. The term reports to `stats.trouble` when it works
    again.
    """
    signals, stats, waits_s = term.signals, term.stats, BACKOFF.waits_s()
    stats.trouble.who = producer
    while not signals.stopping():
        published = stats.published
        try:
            lead()
        except (PublishStopped, Abandoned):
            pass
        except OutboxDroppedError:  # again would do it again
            raise
        except (HoldfastError, KafkaException) as error:
            stats.restarts += 1
            stats.fenced += isinstance(error, FencedError)
            stats.last_error = str(error)
            stats.trouble.strikes(_kind(error), str(error))
        if stats.published > published:
            waits_s = BACKOFF.waits_s()
        if not signals.stopping():
            signals.sleep(next(waits_s))
