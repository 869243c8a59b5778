"""For all tests: Ctrl-C works as it does in a terminal.

A shell starts background jobs with SIGINT ignored, and every child inherits that; the tests that send SIGINT would then
wait for ever.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
