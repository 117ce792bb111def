"""Kafka client: producer (`Writer`), consumer (`Reader`), group membership and admin client, for Kafka 2.4 and newer.

Brokers, command-line tools, Connect workers and tasks use it. It handles records in batches: the writer accepts columns
and acknowledges each send as a whole; the reader returns columns. The protocol logic is in pure modules without
I/O (`writer_core`, `fetch_core`, `membership_core`, `assignors`, `partitioner`, `versions`); the other modules do the
I/O and the timing. All state belongs to one event loop; other threads call `Writer.send_blocking` and
`Reader.poll_blocking`. Import from the modules: `client.writer.Writer`, `client.reader.Reader`, `client.admin.Admin`,
`client.config.ClientConfig`.
"""

from __future__ import annotations

SOFTWARE_VERSION = "0.1.0"
