"""Command-line tools with the flags and output of Apache Kafka's tools.

Each tool is a module with a function `main(argv)`.
"""
