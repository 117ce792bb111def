"""Command-line tools with the flags and output of Apache Kafka's own, each a module with `main(argv)`."""
