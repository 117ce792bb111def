"""`apply` and `convert`: run transforms and converters in memory, configured as the platform configures them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

from headrace.api.converter import RawHeaders
from headrace.api.transform import Transformation
from headrace.data.batch import from_records
from headrace.data.records import ConnectRecord
from headrace.data.schema import Schema
from headrace.plugins.creation import create, create_converter
from headrace.runtime.chain import Step, TransformChain
from headrace.runtime.error_policy import ErrorPolicy, ToleranceExceeded
from headrace.runtime.spec import TaskSpec
from headrace.runtime.task_plugins import Plugins
from headrace.testing.task_configs import error_operator
from headrace.testing.virtual_time import VirtualClock

_R = TypeVar("_R", bound=ConnectRecord)


class Converted(NamedTuple):
    """The result of `convert`: the bytes, and the schema and value that the converter decodes from them."""

    data: bytes | None
    schema: Schema | None
    value: Any


def apply(
    transforms: type[Transformation[Any]] | Mapping[str, str],
    records: Iterable[_R],
    props: Mapping[str, str] | None = None,
) -> list[_R]:
    """Return the transformed records, without dropped records. Raises the first error of a transform or predicate.

    `transforms` is a transform class or a decorated function, and `props` is its configuration. To test several
    transforms, pass their configuration as in a connector's file (``transforms=a,b``, ``transforms.a.type=...``,
    ``predicates=...``).
    """
    if isinstance(transforms, Mapping):
        config = {**transforms, "name": "test"}
        spec = TaskSpec(connector="test", number=0, config={}, connector_config=config, worker={})
        steps = Plugins(spec).make_steps()
    else:
        if not (isinstance(transforms, type) and issubclass(transforms, Transformation)):
            raise TypeError(
                f"{transforms!r} is not a transform class. To test a predicate, configure a transform with it: "
                "apply({'transforms': 'a', 'transforms.a.type': ..., 'transforms.a.predicate': 'p', 'predicates': 'p', "
                "'predicates.p.type': ...}, records)"
            )
        steps = [Step(create(transforms, props or {}))]
    operator = error_operator(ErrorPolicy.from_config({}), VirtualClock(math.inf), lambda failure, part: None)
    chain = TransformChain(steps, operator)
    try:
        results = [
            each for batch in from_records(records) for result in chain.apply(batch) for each in _records(result)
        ]
    except ToleranceExceeded as error:
        raise (error.__cause__ or error) from None
    finally:
        chain.close()
    return cast("list[_R]", results)


def convert(
    converter: type[Any],
    value: Any,
    props: Mapping[str, str] | None = None,
    *,
    schema: Schema | None = None,
    topic: str = "test",
    is_key: bool = False,
    headers: RawHeaders | None = None,
) -> Converted:
    """Convert a value to bytes and back. Raises the converter's errors, for example DataError.

    A converter that uses headers receives `headers`, and may change them.
    """
    raw_headers: RawHeaders = [] if headers is None else headers
    created = create_converter(converter, props or {}, "key" if is_key else "value")
    try:
        data = created.from_connect_with_headers(topic, raw_headers, schema, value)
        decoded = created.to_connect_with_headers(topic, raw_headers, data)
        return Converted(data, decoded.schema, decoded.value)
    finally:
        created.close()


def _records(batch: Any) -> list[Any]:
    return list(batch.to_records())
