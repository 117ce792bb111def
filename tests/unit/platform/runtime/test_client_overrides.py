"""Tests of errors and warnings about client overrides that the worker's policy refuses or that have invalid values."""

from __future__ import annotations

import pytest

from headrace.api import SelfReadingSinkTask, SinkConnector, SinkTask, SourceConnector, SourceTask
from headrace.runtime.client_overrides import override_problems


class Source(SourceConnector):
    task_class = SourceTask


class Sink(SinkConnector):
    task_class = SinkTask


class SelfReadingSink(SinkConnector):
    task_class = SelfReadingSinkTask
    supports_transforms = False


@pytest.mark.parametrize("connector", [Source, Sink, SelfReadingSink])
def test_connector_configuration_without_client_overrides_has_no_override_errors(
    connector: type[SourceConnector] | type[SinkConnector],
) -> None:
    assert list(override_problems(connector, {"name": "c", "topics": "t"}, {})) == []


def test_override_that_the_policy_refuses_is_reported_only_once_even_if_its_value_is_also_invalid() -> None:
    worker = {"connector.client.config.override.policy": "None"}
    problems = list(override_problems(Source, {"producer.override.acks": "2"}, worker))
    assert [(problem.key, problem.is_error) for problem in problems] == [("producer.override.acks", True)]
    assert "'None' policy" in problems[0].message


def test_conflict_between_two_client_overrides_is_reported_as_an_error_of_one_of_the_two_keys() -> None:
    config = {"producer.override.linger.ms": "5000", "producer.override.delivery.timeout.ms": "1"}
    (problem,) = override_problems(Source, config, {})
    assert problem.key in config
    assert "delivery.timeout.ms must be at least linger.ms + request.timeout.ms" in problem.message


def test_warnings_about_the_workers_client_properties_are_not_repeated_for_a_connector() -> None:
    worker = {"producer.lingr.ms": "1"}
    assert list(override_problems(Source, {"producer.override.linger.ms": "1"}, worker)) == []


def test_consumer_overrides_of_a_sink_that_reads_its_topics_itself_are_not_validated() -> None:
    assert list(override_problems(SelfReadingSink, {"consumer.override.security.protocol": "SSL"}, {})) == []
    assert [problem.is_error for problem in override_problems(Sink, {"consumer.override.security.protocol": "SSL"}, {})]


def test_consumer_override_of_the_new_group_protocol_is_an_error() -> None:
    (problem,) = override_problems(Sink, {"name": "c", "consumer.override.group.protocol": "consumer"}, {})
    assert (problem.key, problem.is_error) == ("consumer.override.group.protocol", True)
    assert problem.message.startswith("consumer.override.group.protocol=consumer: not supported yet; remove the key")


def test_client_overrides_with_null_values_are_accepted() -> None:
    config = {"producer.override.acks": None, "errors.deadletterqueue.topic.name": None, "name": None}
    assert list(override_problems(Sink, config, {})) == []
