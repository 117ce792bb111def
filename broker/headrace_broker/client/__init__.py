"""The one client stack: writer, reader, group membership and admin over Kafka's wire protocol, for any Kafka >= 2.4.

Used between brokers, by tools, by Connect workers and by tasks. Records travel in batches: the writer takes columns
and acknowledges whole batches, the reader hands out columns. Decisions live in pure cores (`writer_core`,
`fetch_core`, `membership_core`, `assignors`, `partitioner`, `versions`); everything that touches sockets or clocks is
a thin shell. All state belongs to one event loop; `Writer.send_blocking` and `Reader.poll_blocking` are the doors for
other threads. Import from the modules: `client.writer.Writer`, `client.reader.Reader`, `client.admin.Admin`,
`client.config.ClientConfig`.
"""

from __future__ import annotations

SOFTWARE_VERSION = "0.1.0"
