"""What holds for every test."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is in the background of a shell, and everything started here would ignore Ctrl-C as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)
