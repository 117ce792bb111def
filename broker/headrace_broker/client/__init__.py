"""Kafka client for Kafka 2.4 and newer: `Producer`, `Consumer` with group membership, and `Admin`.

Brokers, command-line tools, Connect workers and Connect tasks use this client. The producer accepts records as columns
and reports one acknowledgement for each `send` call. The consumer returns records as columns. The modules with the
protocol logic are pure: `producer_core`, `fetch_core`, `membership_core`, `assignors`, `partitioner`, `versions`.
The other modules do the I/O and the timing. All state belongs to one event loop. Other threads send with
`Producer.send_blocking` and poll with `Consumer.poll_blocking`. Import from the modules: `client.producer.Producer`,
`client.consumer.Consumer`, `client.admin.Admin`, `client.config.ClientConfig`.
"""

from __future__ import annotations

SOFTWARE_VERSION = "0.1.0"
