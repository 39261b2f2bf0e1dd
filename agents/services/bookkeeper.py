"""The bookkeeper: who may send under which name, what came of each producer, and clean topics. Declared like
any user's processors.

    from holdfast.agents.services.bookkeeper import books, dedupe, registry

    app = create_app([books("orders"), dedupe("payments", clean="payments-clean")])

or by settings, in holdfast's own application: `books`, `dedupe`, `registry`.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.core.outbox import progress
from holdfast.core.producers import cleaning
from holdfast.core.producers import ledger as rules
from holdfast.core.producers import registry as names
from holdfast.errors import ConfigError

PRODUCERS = "producers"
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


def registry(
    topic: str, *, answers: str | None = None
) -> Processor[names.ReceivedCommand, names.Registration]:
    """Return the registry of producers' names: commands on *topic*, answers on *answers*
    (default `<topic>.answers`).
    """
    told = answers or f"{topic}.answers"
    return Processor(
        name=PRODUCERS,
        source=topic,
        decode=names.decode,
        fold=partial(names.fold, answers=told),
        row=names.Registration,
        inputs=("value", "partition"),
        route=names.route,
        emits=(told,),
        in_place=True,
    )


def books(topic: str) -> Processor[rules.LedgerEntry, rules.BookRow]:
    """Return the processor that keeps the books of a stamped topic; it emits nothing."""
    return Processor(
        name=f"books-{_slug(topic)}",
        source=topic,
        decode=rules.decode,
        fold=rules.fold,
        row=rules.BookRow,
        inputs=("headers", "offset"),
    )


def dedupe(
    source: str, clean: str, *, verdicts: str | None = None
) -> Processor[cleaning.Whole, rules.BookRow]:
    """Return the processor that keeps the books of *source* and copies new records to *clean*, each exactly
    once.

    *verdicts* (default `<source>.verdicts`) gets everything unusual, with its reason. Both need as many
    partitions as *source*.
    """
    told = verdicts or f"{source}.verdicts"
    if len({source, clean, told}) < 3:
        raise ConfigError(
            f"dedupe {source}: source, clean topic {clean} and verdicts {told} must be three topics"
        )
    return Processor(
        name=f"clean-{_slug(source)}",
        source=source,
        decode=cleaning.decode_whole,
        fold=partial(cleaning.fold_clean, source=source, clean=clean, verdicts=told),
        row=rules.BookRow,
        inputs=("value", "key", "headers", "partition", "offset"),
        emits=(clean, told),
        in_place=True,
    )


def outbox_progress(topic: str) -> Processor[progress.ProgressRecord, progress.Reached]:
    """Return the processor that keeps how far each outbox says it is, from the topic on which its leaders
    keep their progress.
    """
    return Processor(
        name=f"progress-{_slug(topic)}",
        source=topic,
        decode=progress.decode,
        fold=progress.fold,
        row=progress.Reached,
        inputs=("key", "value", "offset"),
    )


def _slug(topic: str) -> str:
    """Return a topic's name as part of a processor's.

    >>> _slug("shop.orders")
    'shop_orders'
    """
    return _UNFIT.sub("_", topic)[:80]


def processors(settings: Settings) -> list[Processor[Any, Any]]:
    """Return the processors that the settings ask for: the registry, the books of each topic in `books`, a
    clean topic for each pair in `dedupe`.
    """
    found: list[Processor[Any, Any]] = [registry(settings.producers_topic)] if settings.registry else []
    found += [books(topic) for topic in settings.book_topics]
    found += [dedupe(source, clean) for source, clean in settings.dedupe_topics]
    found += [outbox_progress(topic) for topic in settings.progress_topics]
    taken: dict[str, str] = {}
    for each in found:
        if (other := taken.setdefault(each.name, each.source)) != each.source:
            raise ConfigError(
                f"topics {other} and {each.source} are both kept as {each.name}: put one into an application"
                " of its own, or declare it there with holdfast.agents.services.bookkeeper"
            )
    return found
