"""Connect's REST API with the paths, JSON formats, status codes and error bodies of Kafka 4.x."""
