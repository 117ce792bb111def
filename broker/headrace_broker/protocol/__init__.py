"""Kafka's wire protocol: messages, codecs, framing and error codes, without any I/O.

Modules:

* ``notation``: how message classes are declared (``class X(Request[Y], versions="0-3")``), and message objects;
* ``messages``: the requests and responses, one module per API;
* ``metadata_records``, ``group_records``, ``transaction_records``, ``control_records``: the messages stored in logs;
* ``codec``: ``encode`` and ``decode``, compiled per class and version at first use;
* ``apis``: the table of API keys and version ranges; ``framing``: size prefixes and headers; ``errors``: error codes.

Importing this package or ``messages`` loads no message module and compiles no codec; the first use of a message does
both.
"""

KAFKA_VERSION = "4.4.0"
"""The implemented Kafka release: its messages and their versions, its command line tools, Connect's REST API.

Scripts read the release from the first word of a tool's `--version` and from `version` in the Connect worker's `GET /`.
New clusters start with a lower feature level; `metadata.cluster` explains why.
"""
