"""For all tests."""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts background jobs so, and then the Ctrl-C that tests send to this process reaches nobody.
    signal.signal(signal.SIGINT, signal.default_int_handler)
