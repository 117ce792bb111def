"""Example plug-in: a source for an HTTP API that returns its items page by page, in the order of their ids.

The source requests `url?after=<last id>&limit=<page size>` and expects a JSON list of objects. The source needs the
package httpx (`pip install httpx`). Set `plugin.path=configs/plugins` in the worker's configuration, and write in a
connector's file:

    name=orders
    connector.class=paged_api
    url=https://example.com/api/orders
    topic=orders
    poll.interval.ms=10000

Every item becomes a record whose key is the item's id. The source offset is the id of the last item: a restarted
connector requests the items after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import httpx

from headrace.api import Config, ConnectError, RetriableError, SourceRecord, key, source


class PagedApiConfig(Config):
    """Configuration of the source."""

    url: str = key("url", doc="URL of the list of items.", non_empty=True)
    topic: str = key("topic", doc="Topic to write to.", non_empty=True)
    id_field: str = key("id.field", default="id", doc="Field of an item with its id; later items have greater ids.")
    page_size: int = key("page.size", default=100, at_least=1, doc="Items to request at a time.")
    timeout_ms: int = key("timeout.ms", default=5000, at_least=1, doc="Time in ms to wait for the server.")


@source
def paged_api(config: PagedApiConfig, offset: Mapping[str, Any] | None) -> Iterator[SourceRecord]:
    """Read all items after the id in `offset`. The platform calls the function again after `poll.interval.ms`."""
    last_id = None if offset is None else offset["id"]
    with httpx.Client(timeout=config.timeout_ms / 1000) as client:
        while items := request_page(client, config, last_id):
            for item in items:
                last_id = item[config.id_field]
                yield SourceRecord(topic=config.topic, key=last_id, value=item, source_offset={"id": last_id})


def request_page(client: httpx.Client, config: PagedApiConfig, last_id: Any) -> list[dict[str, Any]]:
    """Return the items after `last_id`. Raises RetriableError if the server is overloaded or does not respond."""
    parameters = {"limit": config.page_size} | ({} if last_id is None else {"after": last_id})
    try:
        response = client.get(config.url, params=parameters)
    except httpx.TransportError as error:
        raise RetriableError(f"{config.url}: no response: {error}") from error
    if response.status_code in (408, 429) or response.status_code >= 500:
        raise RetriableError(f"{config.url}: {response.status_code} {response.reason_phrase}")
    if response.is_error:
        raise ConnectError(f"{config.url}: {response.status_code} {response.reason_phrase}: {response.text:.200}")
    return check_items(response, config)


def check_items(response: httpx.Response, config: PagedApiConfig) -> list[dict[str, Any]]:
    """Return the response's items. Raises ConnectError if the response is not a JSON list of objects with ids."""
    try:
        items = response.json()
    except ValueError as error:
        raise ConnectError(f"{config.url}: the response is not JSON: {response.text:.200}") from error
    if not isinstance(items, list) or not all(isinstance(item, dict) and config.id_field in item for item in items):
        raise ConnectError(
            f"{config.url}: expected a list of objects with the field {config.id_field}, found: {items!r:.200}"
        )
    return items
