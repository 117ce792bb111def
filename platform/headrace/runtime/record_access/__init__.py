"""Implements `headrace.api.record_access`: readers and pipelines that a sink sends to other processes and machines.

The objects are created in the task's process, which resolves the configuration. `open` runs in the process that reads
the records. It may run on another machine, without the connector's configuration, config providers and `plugin.path`.
"""
