"""Kafka client for Kafka 2.4 and newer: `Producer`, `Consumer` with group membership, and `Admin`.

Brokers, command-line tools, Connect workers and Connect tasks use this client. It handles records in batches: the
producer accepts columns and acknowledges each send as a whole; the consumer returns columns. The modules with the
protocol logic have no I/O: `producer_core`, `fetch_core`, `membership_core`, `assignors`, `partitioner`, `versions`.
The other modules do the I/O and the timing. All state belongs to one event loop; other threads call
`Producer.send_blocking` and `Consumer.poll_blocking`. Import from the modules: `client.producer.Producer`,
`client.consumer.Consumer`, `client.admin.Admin`, `client.config.ClientConfig`.
"""

from __future__ import annotations

SOFTWARE_VERSION = "0.1.0"
