"""Single message transforms and predicates: Apache Kafka's own, one file each.

Transforms come in pairs where a record's key or its value can be meant: ``HoistFieldKey`` and ``HoistFieldValue`` are
``org.apache.kafka.connect.transforms.HoistField$Key`` and ``…$Value``.
"""
