"""The requests and responses of the protocol: one module per API, loaded when one of its messages is first asked for.

Classes and fields have Kafka's names (fields in snake case). `messages.MetadataRequest` is the request itself; the
messages nested in it are in the API's module, because many APIs have a `TopicData` of their own::

    from headrace_broker.protocol.messages import MetadataRequest
    from headrace_broker.protocol.messages.metadata import MetadataRequestTopic

Where request and response both nest a message of one name but not of one shape, its name begins with the outer
message's (`VoteRequestTopicData`). To add an API: write its module, add it to the imports below and to `apis`.
"""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace_broker.protocol.messages.api_versions import ApiVersionsRequest as ApiVersionsRequest
    from headrace_broker.protocol.messages.api_versions import ApiVersionsResponse as ApiVersionsResponse
    from headrace_broker.protocol.messages.create_topics import CreateTopicsRequest as CreateTopicsRequest
    from headrace_broker.protocol.messages.create_topics import CreateTopicsResponse as CreateTopicsResponse
    from headrace_broker.protocol.messages.fetch import FetchRequest as FetchRequest
    from headrace_broker.protocol.messages.fetch import FetchResponse as FetchResponse
    from headrace_broker.protocol.messages.find_coordinator import FindCoordinatorRequest as FindCoordinatorRequest
    from headrace_broker.protocol.messages.find_coordinator import FindCoordinatorResponse as FindCoordinatorResponse
    from headrace_broker.protocol.messages.init_producer_id import InitProducerIdRequest as InitProducerIdRequest
    from headrace_broker.protocol.messages.init_producer_id import InitProducerIdResponse as InitProducerIdResponse
    from headrace_broker.protocol.messages.list_offsets import ListOffsetsRequest as ListOffsetsRequest
    from headrace_broker.protocol.messages.list_offsets import ListOffsetsResponse as ListOffsetsResponse
    from headrace_broker.protocol.messages.metadata import MetadataRequest as MetadataRequest
    from headrace_broker.protocol.messages.metadata import MetadataResponse as MetadataResponse
    from headrace_broker.protocol.messages.produce import ProduceRequest as ProduceRequest
    from headrace_broker.protocol.messages.produce import ProduceResponse as ProduceResponse


def module_of(api_name: str) -> str:
    """Return the name of the module that holds the messages of an API: "ListOffsets" -> "list_offsets"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", api_name).lower()


if not TYPE_CHECKING:

    def __getattr__(name: str):  # what is not above, no type checker should believe in
        for suffix in ("Request", "Response"):
            if name.endswith(suffix):
                path = f"{__name__}.{module_of(name.removesuffix(suffix))}"
                try:
                    message = getattr(import_module(path), name)
                except ModuleNotFoundError as error:
                    if error.name != path:
                        raise
                    break
                globals()[name] = message
                return message
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
