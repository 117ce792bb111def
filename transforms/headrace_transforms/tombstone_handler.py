"""TombstoneHandler: drop or reject records with a null value, as Confluent's transform TombstoneHandler does."""

from __future__ import annotations

import logging
from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.data.batch import Batch
from headrace_transforms.key_or_value import ListTransformation
from headrace_transforms.record_errors import place_of, record_error

_log = logging.getLogger(__name__)


class TombstoneHandlerConfig(Config):
    """Configuration of TombstoneHandler."""

    behavior: str = key(
        "behavior",
        default="drop_silent",
        one_of=("drop_silent", "drop_warn", "fail", "ignore"),
        case_insensitive=True,
        doc="What happens to a tombstone (a record whose value is null). drop_silent: it is dropped. drop_warn: it is "
        "dropped with a warning in the log. fail: it is an error. ignore: it stays unchanged.",
        importance=Importance.MEDIUM,
    )


class TombstoneHandler(ListTransformation[TombstoneHandlerConfig]):
    """Drops, rejects or keeps tombstones, as the property `behavior` specifies. Other records stay unchanged."""

    java_names = ("io.confluent.connect.transforms.TombstoneHandler",)
    changes_topics = False

    def configure(self, config: TombstoneHandlerConfig) -> None:
        """Store the behavior."""
        self._behavior = config.behavior.lower()

    def change_batch(self, batch: Any) -> Batch | None:
        """Return the batch without tombstones, or the whole batch if `behavior` is `ignore`.

        If `behavior` is `fail`, raises DataError for a tombstone.
        """
        if self._behavior == "ignore" or not batch.has_null_values:
            return batch  # type: ignore[no-any-return]
        values = batch.values
        kept = [index for index, value in enumerate(values) if value is not None]
        dropped = len(values) - len(kept)
        if self._behavior == "fail":
            message = f"A record of topic {batch.topic} is a tombstone: behavior=fail does not permit tombstones"
            raise record_error(message, place_of("value"), "a value that is not null", "null")
        if self._behavior == "drop_warn":
            _log.warning("Dropped %d tombstone record(s) of topic %s", dropped, batch.topic)
        return batch.take(kept) if kept else None
