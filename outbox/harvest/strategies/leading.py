"""Retries a term's work after errors until the term is over, the same for every strategy."""

from __future__ import annotations

import logging
from collections.abc import Callable

from confluent_kafka import KafkaException

from holdfast.clock import Backoff
from holdfast.errors import FencedError, HoldfastError, OutboxDatabaseError, OutboxDroppedError
from holdfast.outbox.harvest.publishing.publisher import PublishStopped
from holdfast.outbox.harvest.shard.shard import Term
from holdfast.outbox.harvest.shard.worker_thread import Abandoned

logger = logging.getLogger(__name__)

BACKOFF = Backoff(0.1, 5.0)


def _kind(error: Exception) -> str:
    if isinstance(error, OutboxDatabaseError):
        return "database"
    return "fenced" if isinstance(error, FencedError) else "broker"


def lead_on(term: Term, lead: Callable[[], None], producer: str) -> None:
    """Call *lead*, which leads until `stop`, again after each error: that costs a pause, never
    the term.

    Pauses grow while nothing is published in between. The term reports to `stats.trouble` when it works
    again. A database that reports success without its effect stops the shard, for later leaders too, until a
    person resumes it.
    """
    signals, stats, waits_s = term.signals, term.stats, BACKOFF.waits_s()
    stats.trouble.who, why = producer, ""
    while not signals.stopping():
        published = stats.published
        try:
            if why:
                _stop(term, why)
                why = ""
            _wait_while_stopped(term)
            if not signals.stopping():
                lead()
        except (PublishStopped, Abandoned):
            pass
        except OutboxDroppedError as error:  # again would do it again, and so would the next leader
            if why:
                raise  # the stop itself is not stored
            why = str(error)
            continue
        except (HoldfastError, KafkaException) as error:
            stats.restarts += 1
            stats.fenced += isinstance(error, FencedError)
            stats.last_error = str(error)
            stats.trouble.strikes(_kind(error), str(error))
        if stats.published > published:
            waits_s = BACKOFF.waits_s()
        if not signals.stopping():
            signals.sleep(next(waits_s))


def _stop(term: Term, why: str) -> None:
    """Note in the database that the shard is stopped."""
    term.signals.resumed.clear()
    term.shard_rows.call(term.shard_rows.rows.stop, term.shard, why)


def _wait_while_stopped(term: Term) -> None:
    """Return when the shard is not stopped, or the term is to end."""
    rows, signals, stats = term.shard_rows.rows, term.signals, term.stats
    if (found := term.shard_rows.call(rows.stopped, term.shard)) is None:
        return
    stats.stopped = stats.last_error = found.why
    fields = {"outbox": term.settings.name, "shard": term.shard, "why": found.why}
    logger.error("outbox %(outbox)s: shard %(shard)d is stopped: %(why)s", fields)
    while not signals.stopping():
        if signals.resumed.is_set():
            signals.resumed.clear()
            term.shard_rows.call(rows.stop, term.shard, "")
            stats.stopped = ""
            logger.warning("outbox %(outbox)s: shard %(shard)d is resumed", fields)
            return
        signals.sleep(term.settings.idle_poll_s)
