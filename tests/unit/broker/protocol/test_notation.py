"""Tests of message classes, version ranges, and the table of APIs."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest

from headrace_broker.protocol import messages
from headrace_broker.protocol.apis import API, ApiKey
from headrace_broker.protocol.codec import decode, encode_joined
from headrace_broker.protocol.messages import FetchRequest, MetadataRequest, ProduceResponse
from headrace_broker.protocol.messages.fetch import ReplicaState
from headrace_broker.protocol.messages.metadata import MetadataRequestTopic
from headrace_broker.protocol.messages.produce import LeaderIdAndEpoch, PartitionProduceResponse
from headrace_broker.protocol.notation import VERSION_MAX, parse_versions

# InitProducerId version 6 is not stable, so no broker advertises it.
UNSTABLE = {ApiKey.INIT_PRODUCER_ID: 6}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", (0, VERSION_MAX)), ("3+", (3, VERSION_MAX)), ("3-5", (3, 5)), ("4", (4, 4)), ("none", (1, 0))],
)
def test_version_range_text_is_parsed_to_first_and_last_version(text: str, expected: tuple[int, int]) -> None:
    assert parse_versions(text) == expected


def test_messages_have_default_values_and_a_repr_and_can_be_compared() -> None:
    assert MetadataRequest() == MetadataRequest(topics=[], allow_auto_topic_creation=True)
    assert MetadataRequest() != MetadataRequest(topics=None)
    assert MetadataRequest() != FetchRequest()
    assert repr(MetadataRequestTopic(name="t")).startswith("MetadataRequestTopic(topic_id=b'")
    assert not hasattr(MetadataRequest(), "__dict__")


def test_messages_do_not_share_their_default_lists() -> None:
    first, second = MetadataRequest(), MetadataRequest()
    first.topics = [*(first.topics or []), MetadataRequestTopic()]
    assert second.topics == []
    assert MetadataRequest().topics is not MetadataRequest().topics


def test_default_value_of_a_struct_field_is_shared_and_read_only() -> None:
    partition = PartitionProduceResponse()
    assert partition.current_leader == LeaderIdAndEpoch() == LeaderIdAndEpoch(leader_id=-1, leader_epoch=-1)
    with pytest.raises(AttributeError, match="this LeaderIdAndEpoch is a default value that messages share"):
        partition.current_leader.leader_id = 1
    partition.current_leader = copy.copy(partition.current_leader)
    partition.current_leader.leader_id = 1
    assert PartitionProduceResponse().current_leader.leader_id == -1


def test_default_value_of_a_decoded_struct_field_is_read_only() -> None:
    request = decode(FetchRequest, 16, encode_joined(FetchRequest(), 16))
    assert request.replica_state == ReplicaState()
    with pytest.raises(AttributeError, match="default value that messages share"):
        request.replica_state.replica_id = 1


def test_unknown_field_name_raises_type_error_or_attribute_error() -> None:
    with pytest.raises(TypeError, match="topicz"):
        MetadataRequest(topicz=[])  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        MetadataRequest().topicz = []  # type: ignore[attr-defined]


@pytest.mark.parametrize("api", API.values(), ids=lambda api: api.name)
def test_keys_and_versions_in_the_api_table_equal_those_of_the_message_classes(api: object) -> None:
    entry = API[api.key]  # type: ignore[attr-defined]
    for message in (entry.request, entry.response):
        assert message.__api_key__ == entry.key
        assert message.__versions__ == (entry.min_version, UNSTABLE.get(entry.key, entry.max_version))
        first = message.__flexible__[0] if message.__flexible__[1] else None
        assert first == entry.flexible_version
    assert ApiKey(entry.key).name.replace("_", "").lower() == entry.name.lower()


def test_messages_package_exports_only_requests_and_responses() -> None:
    assert messages.ProduceResponse is ProduceResponse
    with pytest.raises(AttributeError, match="TopicData"):
        messages.TopicData  # type: ignore[attr-defined] # noqa: B018
    with pytest.raises(ImportError, match="NoSuchRequest"):
        from headrace_broker.protocol.messages import NoSuchRequest  # type: ignore[attr-defined] # noqa: F401


def test_messages_package_imports_every_message_module_for_type_checkers() -> None:
    package = Path(messages.__file__).parent
    text = (package / "__init__.py").read_text(encoding="utf-8")
    for path in package.glob("[a-z]*.py"):
        assert f"from {messages.__name__}.{path.stem} import" in text
    assert {messages.module_name(api.name) for api in API.values()} == {path.stem for path in package.glob("[a-z]*.py")}


def test_import_of_the_protocol_package_loads_no_message_modules() -> None:
    program = (
        "import sys\n"
        "from headrace_broker.protocol import apis, codec, errors, framing, messages\n"
        "print([name for name in sys.modules if 'protocol.messages.' in name or name.endswith('coding')"
        " and 'protocol' in name])"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert loaded == "[]\n"
