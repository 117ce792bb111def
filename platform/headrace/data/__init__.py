"""Connect data: schemas, structs, logical types, records, headers and batches of records.

This package contains only values and pure functions and does no I/O. Its semantics are those of
``org.apache.kafka.connect.data``.
"""
