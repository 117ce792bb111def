"""Connect data: schemas, structs, logical types, records, headers and batches of records.

This package does no I/O: it contains only values and pure functions. Its semantics are those of
``org.apache.kafka.connect.data``.
"""
