"""Conversion of Connect records to Arrow, by the types of a table's columns."""
