"""A broker that discards all records, which makes it possible to measure the load client's maximum throughput.

The program is headrace's broker with the same command line, except that an append neither checks nor writes records.
"""

from __future__ import annotations

import sys

from headrace_broker.log.log import AppendInfo
from headrace_broker.log.validator import AppendOrigin
from headrace_broker.server.broker import Broker
from headrace_broker.server.main import main
from headrace_broker.server.replicas.partitions import Partition


def _discard_records(
    self: Broker, partition: Partition, records: memoryview, origin: AppendOrigin = AppendOrigin.CLIENT
) -> AppendInfo:
    return AppendInfo(0, 0, -1, 0)


if __name__ == "__main__":
    Broker.append = _discard_records  # type: ignore[method-assign]
    sys.exit(main())
