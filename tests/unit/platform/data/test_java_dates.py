"""Tests of SimpleDateFormat in English and UTC. All test vectors were generated with Java 17."""

from __future__ import annotations

import datetime as dt

import pytest

from headrace.data.errors import DataError
from headrace.data.java_dates import SimpleDateFormat

TODAY = dt.date(2026, 11, 21)  # two-digit years depend on the day on which the test vectors were generated
MOMENTS = (1700000000123, 0, 1609459199007)

FORMATTED = [
    ("yyyy-MM-dd'T'HH:mm:ss.SSSZ",
     "2023-11-14T22:13:20.123+0000", "1970-01-01T00:00:00.000+0000", "2020-12-31T23:59:59.007+0000"),
    ("yy/M/d h:m:s a", "23/11/14 10:13:20 PM", "70/1/1 12:0:0 AM", "20/12/31 11:59:59 PM"),
    ("EEE, d MMM yyyy HH:mm:ss z",
     "Tue, 14 Nov 2023 22:13:20 UTC", "Thu, 1 Jan 1970 00:00:00 UTC", "Thu, 31 Dec 2020 23:59:59 UTC"),
    ("EEEE MMMM dd yyyy G",
     "Tuesday November 14 2023 AD", "Thursday January 01 1970 AD", "Thursday December 31 2020 AD"),
    ("D k K S u X XX XXX w W F",
     "318 22 10 123 2 Z Z Z 46 3 2", "1 24 0 0 4 Z Z Z 1 1 1", "366 23 11 7 4 Z Z Z 1 5 5"),
    ("yyyyMMddHHmmssSSS", "20231114221320123", "19700101000000000", "20201231235959007"),
    ("''yyyy''", "'2023'", "'1970'", "'2020'"),
    ("YYYY-'W'ww", "2023-W46", "1970-W01", "2021-W01"),
    ("MMMMM E L LLL LLLL", "November Tue 11 Nov November", "January Thu 1 Jan January", "December Thu 12 Dec December"),
    ("y yyy yyyyy", "2023 2023 02023", "1970 1970 01970", "2020 2020 02020"),
    ("SS S SSSS", "123 123 0123", "00 0 0000", "07 7 0007"),
    ("zzzz", "Coordinated Universal Time", "Coordinated Universal Time", "Coordinated Universal Time"),
]  # fmt: skip

PARSED = [
    ("yyyy-MM-dd", "2020-1-5", 1578182400000),
    ("yyyy-MM-dd", "2020-13-45", 1613260800000),
    ("yyyy-MM-dd", "20-01-05xx", -61535894400000),
    ("yy", "99", 915148800000),
    ("yy", "30", 1893456000000),
    ("yy", "45", 2366841600000),
    ("yy", "46", 2398377600000),
    ("yy", "47", -725846400000),
    ("yyyyMMdd", "20200105", 1578182400000),
    ("HH:mm:ss", "25:61:61", 93721000),
    ("yyyy-MM-dd HH:mm:ss.SSS", "2020-01-05 10:11:12.5", 1578219072005),
    ("yyyy-MM-dd'T'HH:mm:ssX", "2020-01-05T10:11:12+0200", 1578211872000),
    ("yyyy-MM-dd'T'HH:mm:ssXXX", "2020-01-05T10:11:12+02:00", 1578211872000),
    ("yyyy-MM-dd'T'HH:mm:ssXXX", "2020-01-05T10:11:12Z", 1578219072000),
    ("yyyy-MM-dd'T'HH:mm:ssZ", "2020-01-05T10:11:12-0330", 1578231672000),
    ("d MMM yyyy hh:mm a", "5 jan 2020 12:30 AM", 1578184200000),
    ("d MMMM yyyy hh:mm a", "5 Jan 2020 12:30 pm", 1578227400000),
    ("EEE MMM dd HH:mm:ss zzz yyyy", "Thu Jan 02 00:00:00 UTC 2020", 1577923200000),
    ("EEE MMM dd HH:mm:ss zzz yyyy", "Thu Jan 02 00:00:00 PST 2020", 1577952000000),
    ("yyyy-MM-dd", " 2020-01-05", 1578182400000),
    ("yyyy-MM-dd'T'HH:mm:ssz", "2020-01-05T10:11:12GMT+02:00", 1578211872000),
    ("yyyy-MM-dd HH:mm:ss", "2020-01-05  10:11:12", 1578219072000),
    ("yyyyMMddHHmmssSSS", "20200105101112123", 1578219072123),
    ("DDD yyyy", "032 2020", 1580515200000),
    ("yyy-M", "5-1", -62009539200000),
    ("yyyy-MM-dd", "1582-10-04", -12219379200000),
    ("yyyy-MM-dd", "1582-10-10", -12218860800000),
    ("yyyy-MM-dd", "1582-10-15", -12219292800000),
    ("yyyy-MM-dd", "0000-01-01", -62167392000000),
    ("yyyy-MM-dd", "-2020-01-05", -125913398400000),
    ("yyyyMMdd", "-20200105", -68535676800000),
    ("yyyy-MM-dd", "12026-01-05", 317337091200000),
    ("yyyy", "12345", 327403382400000),
    ("yyyy-MM-dd", "300000000-01-01", -8979720640928751616),
    ("yyyy-MM-dd'T'HH:mm:ss.SSSX", "292278994-08-17T07:12:55.808Z", -(2**63)),
    ("yyyy", "99999999999", 1471883220702496768),
    ("yyyy G", "5 BC", -62293622400000),
]

EXTREME = [
    (-(2**63), "BC 292269055-12-02 16:47:04.192 Sun 336 49 2 1 7 -292269054 55 -54"),
    (-62399436301991, "BC 0009-08-24 07:14:58.009 Sat 237 34 4 4 6 -8 09 -08"),
    (-62135596800000, "AD 0001-01-03 00:00:00.000 Mon 3 2 2 1 1 1 01 01"),
    (-12219292800001, "AD 1582-10-04 23:59:59.999 Thu 277 40 1 1 4 1582 82 82"),
    (-12219292800000, "AD 1582-10-15 00:00:00.000 Fri 278 40 1 1 5 1582 82 82"),
    (253402318799000, "AD 10000-01-01 04:59:59.000 Sat 1 1 1 1 6 10000 00 00"),
    (2**63 - 1, "AD 292278994-08-17 07:12:55.807 Sun 229 34 4 3 7 292278994 94 94"),
]


@pytest.mark.parametrize(("pattern", "texts"), [(pattern, texts) for pattern, *texts in FORMATTED])
def test_timestamp_is_formatted_as_in_javas_simple_date_format(pattern: str, texts: list[str]) -> None:
    write = SimpleDateFormat(pattern).format
    assert [write(millis) for millis in MOMENTS] == texts


@pytest.mark.parametrize(("pattern", "text", "millis"), PARSED)
def test_text_is_parsed_as_in_javas_simple_date_format(pattern: str, text: str, millis: int) -> None:
    assert SimpleDateFormat(pattern, TODAY).parse(text) == millis


@pytest.mark.parametrize(("millis", "text"), EXTREME)
def test_timestamps_of_javas_whole_range_are_formatted_and_parsed_in_javas_calendar(millis: int, text: str) -> None:
    whole = SimpleDateFormat("G yyyy-MM-dd HH:mm:ss.SSS EEE D w W F u Y yy YY")
    assert whole.format(millis) == text
    assert SimpleDateFormat("G yyyy-MM-dd HH:mm:ss.SSS").parse(text) == millis


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("yyyy/MM/dd", "2020-01-05"),
        ("yyyy-MM-dd", ""),
        ("MMM", "Foo"),
        ("HH:mm X", "10:00 PST"),
        ("YYYY-ww", "2020-01"),
    ],
)
def test_text_that_does_not_match_the_date_pattern_is_rejected(pattern: str, text: str) -> None:
    with pytest.raises(DataError):
        SimpleDateFormat(pattern).parse(text)


@pytest.mark.parametrize("pattern", ["yyyy-bb", "T", "'open", "XXXX"])
def test_date_pattern_that_java_rejects_raises_value_error(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"Illegal pattern|Unterminated|invalid ISO"):
        SimpleDateFormat(pattern)
