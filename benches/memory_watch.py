"""The resident memory of a process, looked at all the time.

Needs only the Python standard library, and Linux.
"""

import threading
import time

from measured_server import status_kib

POLL_S = 0.005


class MemoryWatch:
    """Looks at a process's resident memory all the time; the peaks are in bytes."""

    FIELDS = ("VmRSS", "RssAnon", "RssFile")

    def __init__(self, server):
        self.pid = server.process.pid
        self.peaks = dict.fromkeys(self.FIELDS, 0)
        self.is_done = False
        self.thread = threading.Thread(target=self._watch)

    def _watch(self):
        while not self.is_done:
            for field, value in self.now().items():
                self.peaks[field] = max(self.peaks[field], value)
            time.sleep(POLL_S)

    def now(self):
        """Returns what is resident at this moment."""
        return {field: self._bytes(field) for field in self.FIELDS}

    def highest(self):
        """Returns the peak as the system itself keeps it."""
        return self._bytes("VmHWM")

    def _bytes(self, field):
        try:
            return status_kib(self.pid, field) << 10
        except (OSError, TypeError):
            return 0  # not yet a program, or none any more
