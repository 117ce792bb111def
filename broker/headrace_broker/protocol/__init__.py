"""Kafka's wire protocol: messages, codecs, framing and error codes. This package does no I/O.

Modules:

* ``notation``: the declarations of message classes (``class X(Request[Y], versions="0-3")``), and their base classes;
* ``messages``: the requests and responses, one module per API;
* ``metadata_records``, ``group_records``, ``transaction_records``, ``control_records``: the messages stored in logs;
* ``codec``: ``encode`` and ``decode``, compiled per class and version at first use;
* ``apis``: the table of API keys and version ranges;
* ``framing``: size prefixes and headers;
* ``errors``: error codes.

An import of this package or of ``messages`` imports no message module and compiles no codec. The first
use of a message imports the message's module and compiles its codec.
"""

KAFKA_VERSION = "4.4.0"
"""The Kafka release whose messages, command line tools and Connect REST API are implemented.

Scripts read the release from the first word of a tool's `--version` output, and from the field
`version` in the response to `GET /` of the Connect worker. New clusters start with a feature level
below this release; `metadata.cluster` explains why.
"""
