"""The API for authors of connectors, transforms, predicates, converters and config providers: one import.

    from headrace.api import Config, SourceRecord, key, source

A plug-in imports only `headrace.api`, `headrace.data` (for the less common parts of the data model) and, in its tests,
`headrace.testing`. The platform finds plug-ins by their entry points and on ``plugin.path``. The example
``configs/plugins/countdown.py`` is a source, a sink and a transform in one file.

This package does no I/O, except that `headrace.api.tls` reads key stores when it creates a TLS context.
"""

from headrace.api.config import (
    REQUIRED,
    Config,
    ConfigDef,
    ConfigKey,
    ConfigType,
    Importance,
    Password,
    Width,
    config_def,
    key,
)
from headrace.api.config_def import ConfigValue
from headrace.api.config_provider import ConfigData, ConfigProvider
from headrace.api.connector import (
    Connector,
    ConnectorContext,
    ExactlyOnceSupport,
    SinkConnector,
    SourceConnector,
    connector_for,
)
from headrace.api.converter import (
    NO_VALUE,
    Converter,
    FramedValues,
    HeaderConverter,
    RawHeaders,
    SchemaAndValue,
    SchemaRun,
    to_runs,
)
from headrace.api.errors import (
    ConfigError,
    ConfigErrors,
    ConnectError,
    DataError,
    MissingConfigError,
    RecordErrors,
    RetriableError,
    UnknownField,
)
from headrace.api.functions import Wait, predicate, sink, source, transform, wait
from headrace.api.plugin import Plugin
from headrace.api.predicate import Predicate
from headrace.api.task import (
    ErrantRecord,
    ErrantRecordReporter,
    OffsetReader,
    RecordMetadata,
    SelfReadingErrantRecordReporter,
    SelfReadingSinkTask,
    SelfReadingSinkTaskContext,
    SinkTask,
    SinkTaskContext,
    SourceTask,
    SourceTaskContext,
    Task,
    TaskContext,
    TopicPartition,
)
from headrace.api.transform import Transformation
from headrace.data.batch import Batch, SinkBatch, SourceBatch
from headrace.data.headers import Header, Headers
from headrace.data.records import ConnectRecord, SinkRecord, SourceRecord, TimestampType
from headrace.data.schema import Field, Schema
from headrace.data.sink_records import SinkRecords
from headrace.data.struct import Struct

__all__ = [
    "NO_VALUE",
    "REQUIRED",
    "Batch",
    "Config",
    "ConfigData",
    "ConfigDef",
    "ConfigError",
    "ConfigErrors",
    "ConfigKey",
    "ConfigProvider",
    "ConfigType",
    "ConfigValue",
    "ConnectError",
    "ConnectRecord",
    "Connector",
    "ConnectorContext",
    "Converter",
    "DataError",
    "ErrantRecord",
    "ErrantRecordReporter",
    "ExactlyOnceSupport",
    "Field",
    "FramedValues",
    "Header",
    "HeaderConverter",
    "Headers",
    "Importance",
    "MissingConfigError",
    "OffsetReader",
    "Password",
    "Plugin",
    "Predicate",
    "RawHeaders",
    "RecordErrors",
    "RecordMetadata",
    "RetriableError",
    "Schema",
    "SchemaAndValue",
    "SchemaRun",
    "SelfReadingErrantRecordReporter",
    "SelfReadingSinkTask",
    "SelfReadingSinkTaskContext",
    "SinkBatch",
    "SinkConnector",
    "SinkRecord",
    "SinkRecords",
    "SinkTask",
    "SinkTaskContext",
    "SourceBatch",
    "SourceConnector",
    "SourceRecord",
    "SourceTask",
    "SourceTaskContext",
    "Struct",
    "Task",
    "TaskContext",
    "TimestampType",
    "TopicPartition",
    "Transformation",
    "UnknownField",
    "Wait",
    "Width",
    "config_def",
    "connector_for",
    "key",
    "predicate",
    "sink",
    "source",
    "to_runs",
    "transform",
    "wait",
]
