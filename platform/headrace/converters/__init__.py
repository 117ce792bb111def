"""Converters between Connect data and bytes: JSON, strings, byte arrays, numbers, booleans, and header values.

This package does no I/O. Each converter converts whole lists with functions that are compiled once per schema. If a
list contains an invalid value, the converter converts the list again value by value and reports each invalid value.
"""
