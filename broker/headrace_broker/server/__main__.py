"""`python -m headrace_broker.server`: run a broker; see `server.main`."""

import sys

from headrace_broker.server.main import main

sys.exit(main())
