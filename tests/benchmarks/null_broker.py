"""A broker that keeps nothing: what a load client reaches when nobody holds it up.

Everything is headrace's broker but the append, which neither checks nor writes; its command line is the broker's.
"""

from __future__ import annotations

import sys

from headrace_broker.log.admission import AppendOrigin
from headrace_broker.log.log import AppendInfo
from headrace_broker.server.broker import Broker
from headrace_broker.server.main import main
from headrace_broker.server.replicas.partitions import Partition


def _keep_nothing(
    self: Broker, partition: Partition, records: memoryview, origin: AppendOrigin = AppendOrigin.CLIENT
) -> AppendInfo:
    return AppendInfo(0, 0, -1, 0)


if __name__ == "__main__":
    Broker.append = _keep_nothing  # type: ignore[method-assign]
    sys.exit(main())
