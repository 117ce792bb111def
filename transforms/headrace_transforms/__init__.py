"""Apache Kafka's single message transforms (SMTs) and predicates, each in its own module.

Transforms that apply to either the key or the value of a record have two classes: ``HoistFieldKey`` and
``HoistFieldValue`` are ``org.apache.kafka.connect.transforms.HoistField$Key`` and ``HoistField$Value``.
"""
