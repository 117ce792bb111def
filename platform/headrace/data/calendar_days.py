"""Conversions between days since 1970-01-01 and dates, for all years, without the limits of Python's `datetime`.

A date is a tuple (year, month, day). Years are astronomical: year 0 is 1 BC, and year -1 is 2 BC. There are two
calendars: the proleptic Gregorian calendar, which SQL databases, ISO 8601 and ``java.time`` use, and the calendar of
Java's ``GregorianCalendar``, which is Julian before 1582-10-15 and which ``java.util.Date`` and SimpleDateFormat use.
"""

from __future__ import annotations

Fields = tuple[int, int, int, int, int, int, int]
"""(year, month, day, hour, minute, second, millisecond)"""

MILLIS_PER_DAY = 86_400_000
_CYCLE_YEARS = 400
_CYCLE_DAYS = 146_097  # the days of 400 Gregorian years
_JULIAN_CYCLE_DAYS = 1461  # the days of 4 Julian years
_MARCH_FIRST_YEAR_0 = -719_468  # 0000-03-01 in the Gregorian calendar, in days since 1970-01-01
_JULIAN_MARCH_FIRST_YEAR_0 = -719_470
_FIRST_GREGORIAN_YEAR = 1582
FIRST_GREGORIAN_DAY = -141_427  # 1582-10-15, the day after the Julian 1582-10-04


def gregorian_days(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 of a date in the proleptic Gregorian calendar.

    `month` must be from 1 to 12. `day` may be any integer: day 0 is the last day of the previous month.
    """
    cycle, year_of_cycle = divmod(year if month > 2 else year - 1, _CYCLE_YEARS)
    days = year_of_cycle * 365 + year_of_cycle // 4 - year_of_cycle // 100 + _day_of_march_year(month)
    return _MARCH_FIRST_YEAR_0 + cycle * _CYCLE_DAYS + days + day - 1


def gregorian_date(days: int) -> tuple[int, int, int]:
    """Return the date in the proleptic Gregorian calendar."""
    cycle, day_of_cycle = divmod(days - _MARCH_FIRST_YEAR_0, _CYCLE_DAYS)
    year = (day_of_cycle - day_of_cycle // 1460 + day_of_cycle // 36_524 - day_of_cycle // 146_096) // 365
    return _date_of_march_year(cycle * _CYCLE_YEARS + year, day_of_cycle - (year * 365 + year // 4 - year // 100))


def java_days(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 of a date in Java's ``GregorianCalendar``. See `gregorian_days`."""
    days = gregorian_days(year, month, day) if year >= _FIRST_GREGORIAN_YEAR else FIRST_GREGORIAN_DAY - 1
    if days >= FIRST_GREGORIAN_DAY:
        return days
    return julian_days(year, month, day)


def julian_days(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01 of a date in the Julian calendar. See `gregorian_days`."""
    cycle, year_of_cycle = divmod(year if month > 2 else year - 1, 4)
    day_of_cycle = year_of_cycle * 365 + _day_of_march_year(month) + day - 1
    return _JULIAN_MARCH_FIRST_YEAR_0 + cycle * _JULIAN_CYCLE_DAYS + day_of_cycle


def java_date(days: int) -> tuple[int, int, int]:
    """Return the date in Java's ``GregorianCalendar``."""
    if days >= FIRST_GREGORIAN_DAY:
        return gregorian_date(days)
    cycle, day_of_cycle = divmod(days - _JULIAN_MARCH_FIRST_YEAR_0, _JULIAN_CYCLE_DAYS)
    year = (day_of_cycle - day_of_cycle // 1460) // 365
    return _date_of_march_year(cycle * 4 + year, day_of_cycle - year * 365)


def gregorian_fields(millis: int) -> Fields:
    """Return the fields of a timestamp in UTC, in the proleptic Gregorian calendar."""
    days, millis_of_day = divmod(millis, MILLIS_PER_DAY)
    return (*gregorian_date(days), *time_fields(millis_of_day))


def time_fields(millis_of_day: int) -> tuple[int, int, int, int]:
    """Return (hour, minute, second, millisecond)."""
    seconds, millisecond = divmod(int(millis_of_day), 1000)
    minutes, second = divmod(seconds, 60)
    return minutes // 60, minutes % 60, second, millisecond


def _day_of_march_year(month: int) -> int:
    """Return the number of days from 1 March to the first day of the month."""
    return (153 * ((month + 9) % 12) + 2) // 5


def _date_of_march_year(year: int, day: int) -> tuple[int, int, int]:
    """Return the date that is `day` days after 1 March of the year."""
    month = (5 * day + 2) // 153
    day_of_month = day - (153 * month + 2) // 5 + 1
    return (year, month + 3, day_of_month) if month < 10 else (year + 1, month - 9, day_of_month)
