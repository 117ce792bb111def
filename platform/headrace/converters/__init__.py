"""Converters between Connect data and the bytes in topics: JSON, strings, byte arrays, numbers, and header text.

Core: no input or output. Each converter works on whole lists, with functions made once per schema; a value that does
not fit is found by going through the list again one by one, so that only the bad ones are reported.
"""
