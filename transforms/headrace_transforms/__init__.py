"""Apache Kafka's single message transforms (SMTs) and predicates, each in its own module.

A transform of keys or values has two classes. For example, ``HoistFieldKey`` and ``HoistFieldValue`` implement Kafka's
``org.apache.kafka.connect.transforms.HoistField$Key`` and ``HoistField$Value``.
"""
