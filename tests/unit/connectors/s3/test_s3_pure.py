"""Tests of the parts of the S3 sink that send no requests: directory patterns, partitioners, files, and spools."""

from __future__ import annotations

import datetime as dt
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.errors import ConfigErrors, DataError, RecordErrors
from headrace.data.headers import Headers
from headrace.data.java import float32
from headrace.data.logical import Timestamp
from headrace.data.schema import FLOAT32_SCHEMA, INT32_SCHEMA, STRING_SCHEMA, array, struct
from headrace.data.struct import Struct
from headrace_connectors.s3.files import Encoded, PartitionFiles
from headrace_connectors.s3.formats import encoder_for, format_for, header_items
from headrace_connectors.s3.joda import JodaFormat
from headrace_connectors.s3.partitioners import partitioner_for, timestamps_of
from headrace_connectors.s3.sink_config import S3SinkConfig
from headrace_connectors.s3.spool import MemoryLimit, Spool, SpoolReader
from support.transforms import sink_batch

BASE = {"s3.bucket.name": "b", "format.class": "JsonFormat", "flush.size": "3"}
NOON = 1_782_907_200_000  # 2026-07-01T12:00:00Z


def config(**props: str) -> S3SinkConfig:
    return S3SinkConfig.parse(BASE | {key.replace("__", "."): value for key, value in props.items()})


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("'year'=YYYY/'month'=MM/'day'=dd/'hour'=HH", "year=2026/month=07/day=01/hour=14"),
        ("yyyy-MM-dd'T'HH:mm:ss.SSS", "2026-07-01T14:05:06.007"),
        ("yy-M-d H K h k a", "26-7-1 14 2 2 14 PM"),
        ("EEE EEEE MMM MMMM e D", "Wed Wednesday Jul July 3 182"),
        ("xxxx-'W'ww", "2026-W27"),
        ("''YYYY 'o''clock' Z ZZ ZZZ z", "'2026 o'clock +0200 +02:00 Europe/Berlin CEST"),
    ],
)
def test_joda_pattern_formats_a_datetime_in_the_time_zone_of_the_datetime(pattern: str, text: str) -> None:
    moment = dt.datetime(2026, 7, 1, 14, 5, 6, 7000, tzinfo=ZoneInfo("Europe/Berlin"))
    assert JodaFormat(pattern).format(moment) == text


@pytest.mark.parametrize("pattern", ["'year=YYYY", "bb", "YYYY-jj"])
def test_invalid_joda_pattern_is_rejected(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        JodaFormat(pattern)


class TestPartitioners:
    def directories(self, batch: Any, **props: str) -> Any:
        settings = config(**props)
        timestamps = timestamps_of(settings)
        return partitioner_for(settings).directories(batch, None if timestamps is None else timestamps(batch, NOON))

    def test_directory_of_the_default_partitioner_is_the_kafka_partition(self) -> None:
        assert self.directories(sink_batch([1], partition=7)) == "partition=7"

    def test_directory_name_of_the_field_partitioner_consists_of_the_configured_fields_of_a_struct_or_map(self) -> None:
        schema = struct([("country", STRING_SCHEMA), ("n", INT32_SCHEMA)])
        batch = sink_batch([Struct(schema, {"country": "de", "n": 1})], schema)
        props = {"partitioner__class": "io.confluent.connect.storage.partitioner.FieldPartitioner"}
        assert self.directories(batch, partition__field__name="country,n", **props) == ["country=de/n=1"]
        assert self.directories(sink_batch([{"n": True}]), partition__field__name="n", **props) == ["n=true"]
        with pytest.raises(DataError, match="field x does not exist"):
            self.directories(batch, partition__field__name="x", **props)

    def test_field_partitioner_finds_nested_fields_and_fields_with_dots_in_their_names(self) -> None:
        props = {"partitioner__class": "FieldPartitioner", "partition__field__name": "place.country"}
        nested = struct([("place", struct([("country", STRING_SCHEMA)]))])
        batch = sink_batch([Struct(nested, {"place": Struct(nested.fields[0].schema, {"country": "de"})})], nested)
        assert self.directories(batch, **props) == ["place.country=de"]
        assert self.directories(sink_batch([{"place": {"country": "fr"}}]), **props) == ["place.country=fr"]
        dotted = struct([("place.country", STRING_SCHEMA)])
        assert self.directories(sink_batch([Struct(dotted, {"place.country": "it"})], dotted), **props) == [
            "place.country=it"
        ]

    def test_field_partitioner_writes_a_float32_with_the_fewest_digits(self) -> None:
        schema = struct([("place", struct([("price", FLOAT32_SCHEMA)]))])
        place = Struct(schema.fields[0].schema, {"price": float32(9.99)})
        props = {"partitioner__class": "FieldPartitioner", "partition__field__name": "place.price"}
        assert self.directories(sink_batch([Struct(schema, {"place": place})], schema), **props) == ["place.price=9.99"]

    @pytest.mark.parametrize(("replaced", "text"), [("true", "7"), ("false", "null")])
    def test_field_partitioner_replaces_null_with_the_default_as_the_value_converters_configuration_says(
        self, replaced: str, text: str
    ) -> None:
        schema = struct([("n", INT32_SCHEMA.replace(optional=True, default=7))])
        props = {"partitioner__class": "FieldPartitioner", "partition__field__name": "n"}
        batch = sink_batch([Struct(schema)], schema)
        found = self.directories(batch, value__converter__replace__null__with__default=replaced, **props)
        assert found == [f"n={text}"]

    def test_field_partitioner_writes_the_text_null_for_a_null_field(self) -> None:
        props = {"partitioner__class": "FieldPartitioner", "partition__field__name": "name"}
        assert self.directories(sink_batch([{"name": None}]), **props) == ["name=null"]

    def test_time_based_partitioner_ignores_a_delimiter_at_the_end_of_the_path_format(self) -> None:
        found = self.directories(
            sink_batch([1], timestamps=NOON), partitioner__class="TimeBasedPartitioner", timezone="UTC",
            partition__duration__ms="3600000", path__format="'hour'=HH/",
            timestamp__extractor="io.confluent.connect.storage.partitioner.TimeBasedPartitioner$RecordTimestampExtractor",
        )  # fmt: skip
        assert found == ["hour=12"]

    def test_record_field_timestamp_extractor_accepts_floating_point_milliseconds(self) -> None:
        props = {"partitioner__class": "HourlyPartitioner", "timezone": "UTC", "timestamp__extractor": "RecordField"}
        assert self.directories(sink_batch([{"timestamp": NOON + 0.5}]), **props) == [
            "year=2026/month=07/day=01/hour=12"
        ]

    def test_rotate_interval_has_no_effect_without_a_time_based_partitioner(self) -> None:
        settings = config(rotate__interval__ms="1000")
        assert timestamps_of(settings) is None
        assert "rotate.interval.ms has no effect" in settings.warnings_about_keys()[0]

    @pytest.mark.parametrize(
        ("name", "zone", "directory"),
        [
            ("Daily", "UTC", "year=2026/month=07/day=01"),
            ("Hourly", "UTC", "year=2026/month=07/day=01/hour=12"),
            ("Daily", "Pacific/Kiritimati", "year=2026/month=07/day=02"),
            ("Hourly", "Asia/Kolkata", "year=2026/month=07/day=01/hour=17"),
            ("Hourly", "+02:00", "year=2026/month=07/day=01/hour=14"),
        ],
    )
    def test_time_based_partitioner_formats_directories_in_the_configured_time_zone(
        self, name: str, zone: str, directory: str
    ) -> None:
        batch = sink_batch([1], timestamps=[NOON])
        props = {"partitioner__class": f"{name}Partitioner", "timezone": zone, "timestamp__extractor": "Record"}
        assert self.directories(batch, **props) == [directory]

    @pytest.mark.parametrize(
        ("zone", "time", "directory"),
        [
            ("Europe/Berlin", "2026-03-29T01:59:59", "day=29/hour=01"),
            ("Europe/Berlin", "2026-03-29T03:00", "day=29/hour=03"),
            ("Europe/Berlin", "2026-03-29T23:59", "day=29/hour=23"),
            ("Europe/Berlin", "2026-10-25T00:30", "day=25/hour=00"),
            ("Europe/Berlin", "2026-10-25T23:30", "day=25/hour=23"),
            ("America/New_York", "2026-03-08T10:00", "day=08/hour=10"),
            ("America/New_York", "2026-11-01T23:30", "day=01/hour=23"),
            ("Asia/Beirut", "2026-03-29T10:00", "day=29/hour=10"),  # the day has no midnight
            ("America/Sao_Paulo", "2018-11-04T10:00", "day=04/hour=10"),  # the day has no midnight
        ],
    )
    def test_time_based_partitioner_uses_the_local_time_on_days_when_clocks_change(
        self, zone: str, time: str, directory: str
    ) -> None:
        moment = dt.datetime.fromisoformat(time).replace(tzinfo=ZoneInfo(zone))
        batch = sink_batch([1], timestamps=[int(moment.timestamp() * 1000)])
        props = {"timezone": zone, "timestamp__extractor": "Record"}
        daily = self.directories(batch, partitioner__class="DailyPartitioner", **props)
        hourly = self.directories(batch, partitioner__class="HourlyPartitioner", **props)
        assert f"{daily[0]}/{hourly[0].rpartition('/')[2]}" == f"year={time[:4]}/month={time[5:7]}/{directory}"

    @pytest.mark.parametrize(
        ("timestamp_ms", "directory"),
        [
            (-(2**63), "era=BC/year=292275056/month=05/day=16/hour=11"),
            (2**63 - 1, "era=AD/year=292278994/month=08/day=17/hour=03"),
            (253402318799000, "era=AD/year=9999/month=12/day=31/hour=23"),
            (-62135579038000, "era=AD/year=0001/month=01/day=01/hour=00"),  # local mean time
            (-62135579039000, "era=BC/year=0001/month=12/day=31/hour=23"),
        ],
    )
    def test_time_based_partitioner_supports_all_timestamps(self, timestamp_ms: int, directory: str) -> None:
        batch = sink_batch([1], timestamps=[timestamp_ms])
        assert self.directories(
            batch, partitioner__class="TimeBasedPartitioner", timezone="America/New_York",
            timestamp__extractor="Record", partition__duration__ms="3600000",
            path__format="'era'=G/'year'=YYYY/'month'=MM/'day'=dd/'hour'=HH",
        ) == [directory]  # fmt: skip

    def test_time_based_partitioner_rounds_timestamps_down_to_the_partition_duration(self) -> None:
        batch = sink_batch([1, 2], timestamps=[NOON + 899_999, NOON + 900_000])
        assert self.directories(
            batch, partitioner__class="TimeBasedPartitioner", timezone="UTC", timestamp__extractor="Record",
            partition__duration__ms="900000", path__format="HH-mm",
        ) == ["12-00", "12-15"]  # fmt: skip

    @pytest.mark.parametrize("value", [NOON, str(NOON), "2026-07-01T12:00:00Z", Timestamp(NOON)])
    def test_time_based_partitioner_with_the_record_field_extractor_reads_timestamps_from_a_field(
        self, value: Any
    ) -> None:
        batch = sink_batch([{"a": {"at": value}}])
        props = {"partitioner__class": "HourlyPartitioner", "timezone": "UTC"}
        found = self.directories(batch, timestamp__extractor="RecordField", timestamp__field="a.at", **props)
        assert found == ["year=2026/month=07/day=01/hour=12"]

    def test_time_based_partitioner_rejects_a_record_without_a_timestamp(self) -> None:
        props = {"partitioner__class": "DailyPartitioner", "timezone": "UTC"}
        with pytest.raises(DataError, match="has no timestamp"):
            self.directories(sink_batch([1]), timestamp__extractor="Record", **props)
        with pytest.raises(DataError, match=r"timestamp\.field"):
            self.directories(sink_batch([{"at": "soon"}]), timestamp__extractor="RecordField",
                             timestamp__field="at", **props)  # fmt: skip


class RecordedFiles:
    """A fake for `Files`. It stores only the offsets of the appended records."""

    def __init__(self, directory: str, first: int) -> None:
        self.directory, self.first, self.offsets = directory, first, []  # type: ignore[var-annotated]

    def append(self, records: Encoded) -> None:
        self.offsets += list(records.offsets)

    def discard(self) -> None:
        self.offsets.clear()


def add(files: PartitionFiles, first: int, directories: Any, timestamps: Any = None, schema: Any = None) -> None:
    count = len(timestamps) if timestamps is not None else len(directories)
    offsets = range(first, first + count)
    files.add(
        Encoded(schema, offsets, False, [(schema, [b"%d" % offset for offset in offsets])]),
        directories,
        timestamps,
        NOON,
    )


def partition_files(**props: str) -> PartitionFiles:
    return PartitionFiles(config(**props), lambda directory, first, tombstone: RecordedFiles(directory, first))


def contents(files: PartitionFiles) -> list[list[tuple[str, list[int]]]]:
    """For each group of files that were completed together, return (directory, record offsets) of each file."""
    return [[(each.directory, each.files.offsets) for each in done.files] for done in files.completed]  # type: ignore[attr-defined]


class TestFiles:
    def test_s3_files_are_completed_when_they_have_flush_size_records(self) -> None:
        files = partition_files()
        add(files, 0, ["a", "a", "b", "a", "a"])
        assert contents(files) == [[("a", [0, 1]), ("b", [2])]]
        assert files.first_offset() == 0
        assert files.open["a"].first_offset == 3

    def test_s3_files_are_completed_when_record_timestamps_span_the_rotate_interval(self) -> None:
        files = partition_files(flush__size="100", rotate__interval__ms="10", timestamp__extractor="Record")
        add(files, 0, "a", [0, 5, 9, 10, 3, 21, 22])
        assert contents(files) == [[("a", [0, 1, 2])], [("a", [3, 4])]]
        assert files.open["a"].first_offset == 5

    @pytest.mark.parametrize(("rotates", "sets"), [("true", 3), ("false", 0)])
    def test_property_rotate_file_on_partition_change_determines_if_s3_files_are_completed_when_the_directory_changes(
        self, rotates: str, sets: int
    ) -> None:
        props = {"flush__size": "100", "rotate__interval__ms": "1000", "timestamp__extractor": "Record"}
        files = partition_files(rotate__file__on__partition__change=rotates, **props)
        add(files, 0, ["a", "a", "b", "a", "b"], [0] * 5)
        assert len(files.completed) == sets

    def test_s3_files_are_completed_when_the_value_schema_changes(self) -> None:
        files = partition_files(flush__size="100")
        add(files, 0, ["a", "a"])
        add(files, 2, ["a"], schema=STRING_SCHEMA)
        assert contents(files) == [[("a", [0, 1])]]

    def test_s3_files_are_completed_at_the_times_of_the_rotate_schedule(self) -> None:
        files = partition_files(flush__size="100", rotate__schedule__interval__ms="60000", timezone="UTC")
        add(files, 0, ["a"])
        files.rotate_by_schedule(NOON + 59_999)
        assert not files.completed
        files.rotate_by_schedule(NOON + 60_000)
        assert contents(files) == [[("a", [0])]]

    def test_s3_files_are_completed_when_offsets_begin_again_because_the_topic_was_created_again(self) -> None:
        files = partition_files(flush__size="100")
        add(files, 50, ["a", "a"])
        add(files, 0, ["a", "a", "a"])
        assert contents(files) == [[("a", [50, 51])]]
        files.completed.clear()
        assert files.first_offset() == 0
        add(files, 3, ["a"])
        assert not files.completed

    def test_s3_files_are_not_completed_when_the_task_itself_reads_records_again(self) -> None:
        files = partition_files(flush__size="100")
        add(files, 50, ["a", "a"])
        assert files.read_again() == 50
        add(files, 50, ["a", "a"])
        assert not files.completed
        assert files.first_offset() == 50

    @given(st.data())
    def test_s3_files_are_the_same_for_any_division_of_records_into_batches(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, 30))
        directories = data.draw(st.lists(st.sampled_from("abc"), min_size=count, max_size=count))
        timestamps = data.draw(st.lists(st.integers(0, 50), min_size=count, max_size=count))
        props = {"flush__size": str(data.draw(st.integers(1, 8))), "timestamp__extractor": "Record"}
        props["rotate__interval__ms"] = data.draw(st.sampled_from(["-1", "10"]))
        found = []
        for _ in range(2):
            files, start = partition_files(**props), 0
            while start < count:
                end = data.draw(st.integers(start + 1, count))
                add(files, start, directories[start:end], timestamps[start:end])
                start = end
            found.append((contents(files), {name: each.files.offsets for name, each in files.open.items()}))  # type: ignore[attr-defined]
        assert found[0] == found[1]
        written = sorted(offset for done in found[0][0] for _, offsets in done for offset in offsets)
        assert written == list(range(len(written)))


@given(st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=40), st.integers(0, 30)), max_size=60))
def test_spooled_data_stays_complete_and_in_order_and_all_spools_share_a_memory_limit(
    steps: list[tuple[int, bytes, int]],
) -> None:
    limit = MemoryLimit(50)
    spools, expected = [Spool(limit) for _ in range(3)], [b""] * 3
    for number, data, size in steps:
        spool = spools[number]
        spool.append(data)
        expected[number] += data
        removed = min(size, spool.size)
        start = removed // 2
        assert spool.read(start, removed) == expected[number][start : start + removed]
        assert SpoolReader(spool, removed).read() == expected[number][:removed]
        spool.remove(removed)
        expected[number] = expected[number][removed:]
        assert limit.used <= 50
        assert limit.used == sum(each.in_memory for each in spools)
    for spool, rest in zip(spools, expected, strict=True):
        assert spool.read(0, spool.size) == rest
        assert b"".join(spool.parts(7)) == rest
        spool.close()
    assert limit.used == 0


@pytest.mark.parametrize(
    ("props", "key"),
    [
        ({"format.class": "AvroFormat"}, "format.class"),
        ({"partitioner.class": "FieldPartitioner"}, "partition.field.name"),
        ({"partitioner.class": "DailyPartitioner"}, "timezone"),
        ({"partitioner.class": "Random"}, "partitioner.class"),
        ({"timezone": "Mars/Base"}, "timezone"),
        ({"s3.acl.canned": "foo"}, "s3.acl.canned"),
        ({"path.format": "'open"}, "path.format"),
        ({"rotate.schedule.interval.ms": "5"}, "timezone"),
        ({"behavior.on.null.values": "write"}, "behavior.on.null.values"),
        ({"flush.size": "0"}, "flush.size"),
        ({"directory.delim": ""}, "directory.delim"),
        ({"s3.part.size": "100"}, "s3.part.size"),
        ({"keys.format.class": "AvroFormat", "store.kafka.keys": "true"}, "keys.format.class"),
        ({"timestamp.extractor": "Sundial"}, "timestamp.extractor"),
    ],
)
def test_error_for_an_invalid_s3_configuration_names_the_key(props: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigErrors) as error:
        S3SinkConfig.parse(BASE | props)
    assert key in {found.key for found in error.value.errors}


def test_unsupported_keys_format_class_is_accepted_if_record_keys_are_not_stored() -> None:
    settings = config(keys__format__class="io.confluent.connect.s3.format.avro.AvroFormat")
    assert not settings.store_keys


@pytest.mark.parametrize(("locale", "warnings"), [("en-US", 0), ("en_GB", 0), ("", 0), ("de-DE", 1)])
def test_locale_causes_a_warning_only_if_its_language_is_not_english(locale: str, warnings: int) -> None:
    assert len(config(locale=locale).warnings_about_keys()) == warnings


def test_byte_array_format_separator_may_contain_non_ascii_characters_and_escapes() -> None:
    settings = config(format__class="ByteArrayFormat", format__bytearray__separator="ü→\\n")
    limit = MemoryLimit(1 << 20)
    spool = Spool(limit)
    format_for("ByteArrayFormat", spool, settings).append(None, [b"a"])
    assert spool.read(0, 100) == "aü→\n".encode()


@pytest.mark.parametrize("stored", ["store.kafka.keys", "store.kafka.headers"])
def test_record_whose_bytes_contain_the_separator_is_rejected_if_keys_or_headers_are_stored(stored: str) -> None:
    props = {"format.class": "ByteArrayFormat", "format.bytearray.separator": "||"}
    encode = encoder_for("ByteArrayFormat", S3SinkConfig.parse(BASE | props | {stored: "true"}))
    assert encode(None, [b"a|b", b"\n"]) == [b"a|b", b"\n"]
    with pytest.raises(RecordErrors) as error:
        encode(None, [b"a", b"a||b", "text"])
    assert list(error.value.errors) == [1, 2]
    assert "contains format.bytearray.separator (b'||')" in str(error.value.errors[1])
    assert encoder_for("ByteArrayFormat", S3SinkConfig.parse(BASE | props))(None, [b"a||b"]) == [b"a||b"]


@pytest.mark.parametrize(("replaced", "expected"), [("true", 7), ("false", None)])
@pytest.mark.parametrize("side", ["key", "value"])
def test_null_field_with_a_default_is_stored_as_the_converters_configuration_says(
    side: str, replaced: str, expected: int | None
) -> None:
    number = INT32_SCHEMA.replace(optional=True, default=7)
    inner = struct([("n", number)])
    schema = struct([("n", number), ("inner", inner), ("list", array(number))])
    row = (None, (None,), [None, 1])
    document = {"n": expected, "inner": {"n": expected}, "list": [expected, 1]}
    settings = config(**{f"{side}__converter__replace__null__with__default": replaced})
    (text,) = encoder_for("JsonFormat", settings, f"{side}.converter")(schema, [row])
    assert json.loads(text) == document
    (stored,) = encoder_for("ParquetFormat", settings, f"{side}.converter")(schema, [row]).batch.to_pylist()
    assert stored == document


def test_parquet_stores_the_default_of_a_null_struct_and_of_a_required_field() -> None:
    inner = struct([("n", INT32_SCHEMA.replace(default=7))])
    schema = struct([("s", inner.replace(default=Struct(inner, {"n": 8}))), ("n", INT32_SCHEMA.replace(default=9))])
    encoded = encoder_for("ParquetFormat", config())(schema, [(None, None), ((None,), 1)])
    assert encoded.batch.to_pylist() == [{"s": {"n": 8}, "n": 9}, {"s": {"n": 7}, "n": 1}]


def test_header_values_in_s3_header_files_are_written_as_strings() -> None:
    headers = Headers().add("n", 5).add("b", True).add("none", None).add("text", "x").add("list", [1, 2])
    assert [each["value"] for each in header_items(headers)] == ["5", "true", None, "x", "[1,2]"]


def test_buffered_rows_of_parquet_files_count_towards_the_memory_limit() -> None:
    schema = struct([("text", STRING_SCHEMA)])
    limit = MemoryLimit(1_048_576)
    config = S3SinkConfig.parse({"s3.bucket.name": "b", "format.class": "ParquetFormat", "flush.size": "9"})
    formats = []
    peak = 0
    for _ in range(20):
        spool = Spool(limit)
        formats.append((spool, format_for("ParquetFormat", spool, config)))
    for _ in range(5):
        for _, form in formats:
            form.append(schema, encoder_for("ParquetFormat", config)(schema, [("x" * 100,)] * 1000))
            peak = max(peak, limit.used)
    assert 500_000 < peak <= 1_048_576
    for spool, form in formats:
        form.finish()
        assert spool.size > 0
        spool.close()
    assert limit.used == 0


def test_spools_keep_their_bytes_when_several_threads_move_spools_to_disk_at_the_same_time() -> None:
    limit = MemoryLimit(50_000)

    def fill_and_drain(number: int) -> tuple[bytes, bytes]:
        spool, expected = Spool(limit), b""
        for turn in range(200):
            data = bytes([number]) * (turn * 7 % 900)
            spool.append(data)
            expected += data
        found = b"".join(spool.parts(333))
        spool.close()
        return expected, found

    with ThreadPoolExecutor(6) as pool:
        for expected, found in pool.map(fill_and_drain, range(24)):
            assert found == expected
    assert limit.used == 0
