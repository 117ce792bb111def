"""DropHeaders and InsertHeader: remove headers by name, or add a header."""

from __future__ import annotations

from typing import Any

from headrace.api.config import Config, Importance, key
from headrace.data.batch import Batch
from headrace.data.headers import Header, Headers, map_headers
from headrace.data.value_text import parse_string
from headrace_transforms.key_or_value import ListTransformation
from headrace_transforms.list_checks import require_non_empty_items


class DropHeadersConfig(Config):
    """Configuration of DropHeaders."""

    headers: list[str] = key(
        "headers",
        validator=require_non_empty_items,
        distinct=True,
        doc="The names of the headers to remove.",
        importance=Importance.HIGH,
    )


class DropHeaders(ListTransformation[DropHeadersConfig]):
    """Removes all headers with the configured names."""

    java_names = ("org.apache.kafka.connect.transforms.DropHeaders",)
    changes_topics = False

    def configure(self, config: DropHeadersConfig) -> None:
        """Store the names of the headers to drop."""
        self._names = tuple(config.headers)

    def change_batch(self, batch: Any) -> Batch:
        """Remove the headers from each record."""
        changed: Batch = batch
        if batch.headers is not None:
            changed = batch.replace(headers=map_headers(lambda headers: headers.without(*self._names), batch.headers))
        return changed


class InsertHeaderConfig(Config):
    """Configuration of InsertHeader."""

    header: str = key("header", doc="The header's name.", importance=Importance.HIGH)
    value_literal: str = key(
        "value.literal",
        doc="The header's value. Text in the format of a number, boolean, date, list or map is converted to that type.",
        importance=Importance.HIGH,
    )


class InsertHeader(ListTransformation[InsertHeaderConfig]):
    """Adds one header to each record."""

    java_names = ("org.apache.kafka.connect.transforms.InsertHeader",)
    changes_topics = False

    def configure(self, config: InsertHeaderConfig) -> None:
        """Store the header's name and value."""
        parsed = parse_string(config.value_literal)
        self._header = Header(config.header, parsed.schema, parsed.value)

    def change_batch(self, batch: Any) -> Batch:
        """Add the header to each record."""
        present = batch.headers if batch.headers is not None else [()] * len(batch)
        changed: Batch = batch.replace(headers=map_headers(lambda headers: Headers((*headers, self._header)), present))
        return changed
