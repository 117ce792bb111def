"""What flows through a pipeline: schemas, structs, logical types, records, headers and batches of records.

Core: pure values and pure functions, no input or output. The semantics are those of ``org.apache.kafka.connect.data``.
"""
