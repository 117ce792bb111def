"""Conversion of the fields of a date to milliseconds since the epoch, with the rules of Java's ``GregorianCalendar``.

A field is a pattern letter with a number. Fields may contradict each other: ``D`` (day of the year) and ``d`` (day of
the month) both determine the day. Then the field that was set last is used. Numbers may exceed their usual range.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.data.calendar_days import FIRST_GREGORIAN_DAY, MILLIS_PER_DAY, gregorian_days, java_date, julian_days
from headrace.data.java import wrap

Fields = Mapping[str, int]
"""The fields in the order in which they were set. M starts with 0. E is the day of the week, from 1 (Sunday) to 7. H is
the hour of the day, h is the hour of half a day, a is 0 (AM) or 1 (PM), G is 0 (BC) or 1 (AD)."""

_Calendar = Callable[[int, int, int], int]
_SUNDAY = 1
_CUTOVER_YEAR = 1582  # the last year of the Julian calendar, and the first year of the Gregorian calendar


def to_local_millis(fields: Fields) -> int:
    """Return the milliseconds since the epoch if the fields are in UTC."""
    order = dict(zip(fields, range(1, len(fields) + 1), strict=True))
    time_ms = _time_ms(fields, order)
    rule = _day_rule(order)
    year = fields.get("y", 1970)
    days = _days(1 - year if fields.get("G") == 0 else year, rule, fields, time_ms)
    if order.get("Y", 0) > order.get("y", 0):
        is_before_christ = java_date(wrap(days * MILLIS_PER_DAY, 64) // MILLIS_PER_DAY)[0] <= 0
        days = _week_date_days(fields, is_before_christ) + time_ms // MILLIS_PER_DAY
    return days * MILLIS_PER_DAY + time_ms % MILLIS_PER_DAY


def _time_ms(fields: Fields, order: Fields) -> int:
    half_day_order = max(order.get("h", 0), order.get("a", 0)) if "h" in order and "a" in order else 0
    uses_half_days = order.get("H", 0) <= half_day_order
    hour = fields.get("h", 0) + 12 * fields.get("a", 0) if uses_half_days else fields["H"]
    return ((hour * 60 + fields.get("m", 0)) * 60 + fields.get("s", 0)) * 1000 + fields.get("S", 0)


def _day_rule(order: Fields) -> str:
    """Return the field that determines the day: d, D, w (week of the year), W (week of the month) or F.

    A week needs a day of the week. If there is no complete combination of fields, a week or a day of the week suffices.
    """
    if "d" in order and order.keys().isdisjoint("DwWF"):
        return "d"
    weekday, w, week, f = (order.get(letter, 0) for letter in "EwWF")
    of_month, of_year = order.get("d", 0), order.get("D", 0)
    by_week = max(week, weekday) if week and weekday else 0
    by_weekday = max(f, weekday) if f and weekday else 0
    by_year_week = max(w, weekday) if w and weekday else 0
    last = max(of_month, of_year, by_week, by_weekday, by_year_week)
    if not last:
        by_week, by_weekday, by_year_week = week, max(f, weekday), w
        last = max(by_week, by_weekday, by_year_week)
    if last == of_month:
        return "d"
    if (last == by_week and week >= w) or (last == by_weekday and f >= w):
        if by_week == by_weekday:
            return "W" if week >= f else "F"
        return "W" if last == by_week else "F"
    return "D" if last == of_year else "w"


def _days(year: int, rule: str, fields: Fields, time_ms: int) -> int:
    """Return the days since 1970-01-01, including the days of the time. The year decides which calendar is used."""
    extra_days = time_ms // MILLIS_PER_DAY
    if year > _CUTOVER_YEAR or (year == _CUTOVER_YEAR and rule not in "Dw"):
        days = _days_in_calendar(gregorian_days, year, rule, fields) + extra_days
        if days >= FIRST_GREGORIAN_DAY:
            return days
    return _days_in_calendar(julian_days, year, rule, fields) + extra_days


def _days_in_calendar(calendar: _Calendar, year: int, rule: str, fields: Fields) -> int:
    if rule in "Dw":
        first = calendar(year, 1, 1)
        if rule == "D":
            return first + fields["D"] - 1
        return _first_day_of_first_week(first, fields) + 7 * (fields["w"] - 1)
    years, month = divmod(fields.get("M", 0), 12)
    first = calendar(year + years, month + 1, 1)
    if rule == "d":
        return first + fields.get("d", 1) - 1
    if rule == "W":
        return _first_day_of_first_week(first, fields) + wrap(7 * (fields["W"] - 1), 32)
    weekday, count = fields.get("E", _SUNDAY), fields.get("F", 1)
    if count >= 0:
        return _on_or_before(first + wrap(7 * count, 32) - 1, weekday)
    following = calendar(year + years + (month + 1) // 12, (month + 1) % 12 + 1, 1)
    return _on_or_before(following + wrap(7 * (count + 1), 32) - 1, weekday)


def _first_day_of_first_week(first: int, fields: Fields) -> int:
    """Return the day of the week `E`, or Sunday, in the week that contains the day `first`."""
    sunday = _on_or_before(first, _SUNDAY)
    return _on_or_before(sunday + 6, fields["E"]) if "E" in fields else sunday


def _on_or_before(days: int, weekday: int) -> int:
    return days - (days + 5 - weekday) % 7


def _week_date_days(fields: Fields, is_before_christ: bool) -> int:
    """Return the days since 1970-01-01 of the week-based year Y, the week w and the day of the week E."""
    year = 1 - fields["Y"] if is_before_christ else fields["Y"]
    week, weekday = fields.get("w", 1), fields.get("E", _SUNDAY)
    if not 1 <= weekday <= 7:
        weeks, index = divmod(weekday - 1, 7)  # u: from Monday
        week, weekday = week + weeks, (index + 1) % 7 + 1
    first_sunday = wrap(_days(year, "w", {"w": 1, "E": _SUNDAY}, 0) * MILLIS_PER_DAY, 64) // MILLIS_PER_DAY
    return first_sunday + wrap(weekday - _SUNDAY + 7 * (week - 1), 32)
