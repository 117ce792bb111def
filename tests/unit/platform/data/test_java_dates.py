"""Tests of SimpleDateFormat in English and UTC. All test vectors were generated with Java 17 and 21."""

from __future__ import annotations

import datetime as dt

import pytest

from headrace.data.errors import DataError
from headrace.data.java_dates import SimpleDateFormat
from headrace.data.java_dates.zone_names import zone_names

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
    ("YYYY-ww", "2020-01", 1577577600000),
    ("YYYY-'W'ww-u", "2024-W10-3", 1709683200000),
    ("YYYY-'W'ww EEEE", "2021-W01 Thursday", 1609372800000),
    ("YYYY u", "2024 0", 1703376000000),
    ("YYYY ww u", "2024 53 15", 1736726400000),
    ("YYYY yyyy", "2024 2020", 1577836800000),
    ("yyyy YYYY", "2024 2020", 1577577600000),
    ("yyyy-ww EEE", "2024-10 Tue", 1709596800000),
    ("yyyy MM W E", "2024 03 2 Fri", 1709856000000),
    ("yyyy MM F E", "2024 03 -1 Fri", 1711670400000),
    ("yyyy MM F E", "2024 03 3 Fri", 1710460800000),
    ("yyyy MM EEE", "2024 03 Fri", 1709251200000),
    ("yyyy MM W", "2024 03 2", 1709424000000),
    ("EEEE", "sun", 259200000),
    ("EEEE", "Mon", 345600000),
    ("u", "3", 518400000),
    ("yyyy-MM-dd DDD", "2024-03-05 032", 1706745600000),
    ("DDD yyyy-MM-dd", "032 2024-03-05", 1709596800000),
    ("dd EEE w yyyy", "05 Tue 20 2024", 1715644800000),
    ("G YYYY ww", "BC 0005 10", -62288697600000),
    ("HH hh a", "13 05 PM", 61200000),
    ("hh a HH", "05 PM 13", 46800000),
    ("HH a", "13 PM", 46800000),
    ("yyyy-MM-dd HH", "1582-10-14 24", -12219292800000),
    ("yyyy-MM-dd", "1581-23-20", -12215318400000),
    ("DDD yyyy", "300 1582", -12217392000000),
    ("yyyyMMdd HHmmss", "20240102  12131", 1704158491000),
    ("HHmmssSSS", " 1359012", 5790012),
    ("MMMM d, yyyy", "March  5, 2024", 1709596800000),
    ("yyyy MMM G", "5 Mar Before Christ", -62288438400000),
    ("yyyy G", "5 Anno Domini", -62009539200000),
    ("yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2024-1-30T24:00:0.123+01:00", 1706655600123),
    ("HH X", "10 +0130", 32400000),
    ("HH XX", "10 -0830", 66600000),
    ("HH Z", "10 -0059", 39540000),
    ("HH Z", "10 GMT-8:30", 66600000),
    ("HH z", "10 GMT", 36000000),
    ("HH z", "10 utc+05:00", 36000000),
    ("HH z", "10 Central European Summer Time", 28800000),
    ("HH z", "10 cest", 28800000),
    ("yyyy HH z", "2026 10 PST", 1767290400000),
    ("yyyy HH z", "2026 10 HDT", 1767297600000),
    ("yyyy HH z", "2026 10 Nepal Time", 1767240900000),
    ("yyyy HH z", "2026 10 Réunion Time", 1767247200000),
    ("yyyy HH z", "2026 10 Dumont-d’Urville Time", 1767225600000),
    ("yyyy HH z", "2026 10 Eastern Standard Time", 1767279600000),
    ("yyyy HH z", "2026 10 EAST", 1767250800000),
    ("yyyy HH z", "2026 10 IST", 1767254400000),
    ("YYYY", "292278994", 9223372016870400000),
    ("SSSww-yYY DDDD ", "99999999999953-16001582 00 ", -196341112425599001),
    ("yyyyMMdd", "2024011", 1704067200000),
    ("LLdd", "1-1", -172800000),
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
        ("yyyy z HH", "2026 Western African Time 10"),
        ("HH:mm XXX", "10:00 -0830"),
        ("HH:mm XX", "10:00 +01:00"),
        ("HH:mm X", "10:00 +1"),
        ("HH:mm Z", "10:00 Z"),
        ("HH:mm Z", "10:00 -083"),
        ("HH:mm Z", "10:00 +01:00"),
        ("HH:mm Z", "10:00 +2400"),
        ("HH:mm Z", "10:00 +0160"),
        ("HH:mm z", "10:00 GMT+8"),
        ("HH:mm z", "10:00 gmt-8"),
        ("HH:mm z", "10:00 Mars"),
        ("EEEE", " Mon"),
        ("MMMM d", " March 5"),
        ("hh a", "10  AM"),
        ("y G", "5  AD"),
    ],
)
def test_text_that_does_not_match_the_date_pattern_is_rejected(pattern: str, text: str) -> None:
    with pytest.raises(DataError):
        SimpleDateFormat(pattern).parse(text)


@pytest.mark.parametrize("pattern", ["yyyy-bb", "T", "'open", "XXXX"])
def test_date_pattern_that_java_rejects_raises_value_error(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"Illegal pattern|Unterminated|invalid ISO"):
        SimpleDateFormat(pattern)


@pytest.mark.parametrize(
    ("text", "offset_minutes"),
    [("PST 10", -480), ("Eastern Standard Time 10", -300), ("WIT 10", 540), ("WITA 10", None), ("EASTERN 10", None)],
)
def test_first_zone_name_in_javas_order_is_parsed(text: str, offset_minutes: int | None) -> None:
    parse = SimpleDateFormat("z HH").parse
    if offset_minutes is None:
        with pytest.raises(DataError):
            parse(text)
    else:
        assert parse(text) == 36_000_000 - offset_minutes * 60_000


def test_all_zone_names_are_parsed() -> None:
    names = zone_names()
    assert len(names) == len({name.lower() for name in names}) == 612
    for name, offset_ms in names.items():
        assert SimpleDateFormat("HH z").parse(f"10 {name.swapcase()}") == 36_000_000 - offset_ms
