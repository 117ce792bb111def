"""Kafka's wire protocol as data: messages, codecs, framing and the error table. Pure; no I/O.

Where things are:

* ``notation``: how a message is written down (``class X(Request[Y], versions="0-3")``), and what a message object is;
* ``messages``: the requests and responses, one module per API;
* ``metadata_records``, ``group_records``, ``transaction_records``, ``control_records``: the messages that live in logs;
* ``codec``: ``encode`` and ``decode``, compiled per class and version at first use;
* ``apis``: the table of API keys and version ranges; ``framing``: size prefixes and headers; ``errors``: error codes.

Importing this package, or ``messages``, compiles nothing and loads no message: both happen when a message is first
used.
"""

KAFKA_VERSION = "4.4.0"
"""The Kafka release that is spoken here: its messages and their versions, its tools' manners, the worker's REST API.

Scripts look at it: the first word of a tool's `--version`, `version` in the worker's `GET /`. The feature level that
new clusters begin with is lower, and stands with its reason in `metadata.cluster`.
"""
