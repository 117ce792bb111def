"""Tests of the Arrow arrays that the Kafka source builds without calling pa.array()."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("confluent_kafka")
pytest.importorskip("pyarrow")
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_connectors.lakehouse.range_reader import integer_array, text_array


@settings(deadline=None)  # the first call of pa.array() imports pandas, which takes long
@given(st.lists(st.none() | st.text(max_size=5)))
def test_string_array_equals_the_array_from_pyarrow(texts: list[str | None]) -> None:
    array = text_array([text if text is None else text.encode() for text in texts])
    array.validate(full=True)
    assert array.equals(pa.array(texts, pa.string()))


@settings(deadline=None)  # the first call of pa.array() imports pandas, which takes long
@given(st.lists(st.none() | st.integers(-(2**63), 2**63 - 1)))
def test_integer_array_equals_the_array_from_pyarrow(values: list[int | None]) -> None:
    for type_ in (pa.int64(), pa.timestamp("ms", tz="UTC")):
        array = integer_array(values, type_)
        array.validate(full=True)
        assert array.equals(pa.array(values, pa.int64()).cast(type_))


def test_string_with_invalid_utf_8_is_rejected() -> None:
    with pytest.raises(pa.ArrowInvalid):
        text_array([b"ok", b"\xff"])


def test_modules_of_the_spark_kafka_source_do_not_import_pandas() -> None:
    code = (
        "import sys, headrace_connectors.lakehouse.kafka_source as k, headrace_connectors.lakehouse.range_reader as r,"
        " pyarrow as pa; r.text_array([b'x', None]); r.integer_array([1, None], pa.int64());"
        " sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
