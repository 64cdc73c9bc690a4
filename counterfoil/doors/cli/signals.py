"""How a command that goes on for ever is told to end."""

import asyncio
import signal
from contextlib import suppress

__all__ = ["told_to_end"]


def told_to_end() -> asyncio.Event:
    """Set by the first Ctrl-C or SIGTERM; a second one ends the process at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    signals = (signal.SIGINT, signal.SIGTERM)

    def end() -> None:
        stop.set()
        for number in signals:
            loop.remove_signal_handler(number)

    for number in signals:
        with suppress(NotImplementedError):  # where a loop knows no signals, Ctrl-C still raises
            loop.add_signal_handler(number, end)
    return stop
