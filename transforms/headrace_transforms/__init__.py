"""Apache Kafka's single message transforms (SMTs) and predicates, each in its own module.

A transform of keys or values has one class for keys and one class for values. For example, ``HoistFieldKey`` and
``HoistFieldValue`` implement Kafka's ``org.apache.kafka.connect.transforms.HoistField$Key`` and ``HoistField$Value``.
"""
