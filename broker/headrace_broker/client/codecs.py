"""Compiles the codecs of the client's requests before they are needed.

A process that forks children calls `compile_codecs` first: the children then share the memory of the compiled codecs.
"""

from __future__ import annotations

from headrace_broker.client.fetcher import FETCH_VERSION_MAX
from headrace_broker.client.offsets import OFFSET_COMMIT_VERSION_MAX, OFFSET_FETCH_VERSION_MAX
from headrace_broker.client.producer import PRODUCE_VERSION_MAX
from headrace_broker.protocol.apis import API, ApiKey
from headrace_broker.protocol.codec import decoder, encoder
from headrace_broker.protocol.notation import VERSION_MAX

_VERSIONS_MAX = {
    ApiKey.API_VERSIONS: VERSION_MAX,
    ApiKey.METADATA: VERSION_MAX,
    ApiKey.PRODUCE: PRODUCE_VERSION_MAX,
    ApiKey.INIT_PRODUCER_ID: VERSION_MAX,
    ApiKey.FETCH: FETCH_VERSION_MAX,
    ApiKey.LIST_OFFSETS: VERSION_MAX,
    ApiKey.FIND_COORDINATOR: VERSION_MAX,
    ApiKey.JOIN_GROUP: VERSION_MAX,
    ApiKey.SYNC_GROUP: VERSION_MAX,
    ApiKey.HEARTBEAT: VERSION_MAX,
    ApiKey.LEAVE_GROUP: VERSION_MAX,
    ApiKey.OFFSET_COMMIT: OFFSET_COMMIT_VERSION_MAX,
    ApiKey.OFFSET_FETCH: OFFSET_FETCH_VERSION_MAX,
}
"""The requests of producers and consumers, with the newest version that the client sends."""


def compile_codecs() -> None:
    """Compile the codecs of the newest version of each request that the client sends, and of the responses."""
    for key, version_max in _VERSIONS_MAX.items():
        api = API[key]
        version = min(api.max_version, version_max)
        encoder(api.request, version)
        decoder(api.response, version)
