"""A node looks for results of which it has not heard (docs/rights.md, section 5).

Who is told that a call is unavailable, though it has reached its callee, may own results: the switch has let the answer pass, it was lost, and its callee
knows the call no more. The Gatekeeper lists what the node owns, and what nothing explains is freed:

    node ── what do I own? ──▶ Gatekeeper ── words, then slots ──▶ switch
    node ◀── regions ──────────────┘
         calls that are out now come to their ends ─▶ what has not been in the account since the question is freed

What one of those calls brings is in the account when it is over. What the node has freed long ago is listed, too, until its slot is used again. A free of that
changes nothing.
"""

import logging
import threading

from . import layout
from .errors import Error

FIRST_PAUSE, MOST_PAUSE = 1.0, 60.0  # seconds until the node looks, so that calls to a node that has gone are looked for together; until it looks again, at most

log = logging.getLogger("bifrost")


def may_have_brought(asks, m):
    """Whether a call may have handed regions over to this node though its answer, or that to a question about it, says otherwise."""
    return m.type == layout.TYPE_EXCEPTION and m.code == layout.UNAVAILABLE and (asks or not m.refuses)


class Audit:
    """When a node looks. look does so once; done is set when the node has ended. Safe for concurrent use."""

    def __init__(self, look, done):
        self._look, self._done = look, done
        self._lock = threading.Lock()
        self._wanted = self._runs = False

    def want(self):
        """Has the node look soon. It does not wait."""
        with self._lock:
            self._wanted = True
            if not self._runs:
                self._runs = True
                threading.Thread(target=self._run, name="bifrost audit", daemon=True).start()

    def _next(self):
        """Whether to look now."""
        with self._lock:
            self._runs, self._wanted = self._wanted, False
            return self._runs

    def _run(self):
        pause = FIRST_PAUSE
        while not self._done.wait(pause) and self._next():
            try:
                self._look()
            except Error as e:
                if e.code == layout.STALE:
                    return  # a Gatekeeper of an earlier release, which is not asked again
                if not self._done.is_set():
                    log.warning("the node is not told what it owns: %s", e)
                self.want()
            pause = min(2 * pause, MOST_PAUSE)
