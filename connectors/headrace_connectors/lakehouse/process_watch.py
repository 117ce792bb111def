"""The former name of `headrace_connectors.lakehouse.spark.process_watch`."""

from headrace_connectors.lakehouse.spark.process_watch import exit_with_process as exit_with_process
