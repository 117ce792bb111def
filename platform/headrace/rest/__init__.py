"""Connect's REST API, as Kafka 4.x has it: paths, shapes, status codes and error bodies."""
