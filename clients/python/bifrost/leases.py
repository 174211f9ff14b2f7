"""Standing leases: a node reads another one's value for longer than a call (docs/rights.md, section 4). For programs there are Ref.share, Ref.unshare and
borrow in refs.py."""

import threading

from . import layout, wire
from .errors import Error
from .ttypes import Lease

FIRST_PAUSE, MOST_PAUSE = 0.001, 0.1  # seconds between two questions how far a lease has come: at first, and at most
FIRST_REST, MOST_REST = 0.05, 0.25  # between two questions whether it has ended, which takes a second


class Given:
    """A standing lease that this node gives. handle is what the reader gets, when wait has returned."""

    def __init__(self, node, pointer, length, reader):
        self.handle = Lease(length, pointer)
        self._node, self._region, self._number = node, wire.region_of(pointer), next(node.shares)
        self._lock, self._ending = threading.Lock(), False
        self._here, self._over = threading.Event(), threading.Event()  # the Gatekeeper has said so of its beginning, and of its end
        self._refused = self._cut = None  # the Errors of these
        node.memory.account.lend([self._region])
        self._start(self._begin, reader)

    def _start(self, f, *args):
        threading.Thread(target=f, args=args, name="bifrost lease", daemon=True).start()

    def _begin(self, reader):
        try:
            r = self._ask(layout.SHARE_HOLDS, FIRST_PAUSE, MOST_PAUSE, lessee=reader, regions=[self._region])
            self.handle.slot, self.handle.number = r["slot"], r["number"]
        except Error as e:
            self._refused = e
        self._here.set()

    def wait(self, timeout):
        """Waits until the reader may read. If it fails, there is no lease in the end."""
        if not self._here.wait(timeout):
            self.end()
            raise Error(layout.DEADLINE_EXCEEDED, "the Gatekeeper has not said in %g s that it is there" % timeout, "share")
        if self._refused:
            self.end()
            raise self._refused

    def end(self):
        """Begins the end of the lease, once."""
        with self._lock:
            if not self._ending:
                self._ending = True
                self._start(self._take_back)

    def _take_back(self):
        self._here.wait()  # it has one question out at a time
        try:
            self._ask(layout.SHARE_ENDED, FIRST_REST, MOST_REST, end=True)
            self._node.memory.account.back([self._region])
        except Error as e:
            self._cut = e
        self._over.set()

    def wait_over(self, timeout):
        """Waits until nobody reads by the lease any more."""
        if not self._over.wait(timeout):
            raise Error(layout.DEADLINE_EXCEEDED, "it is still read by the lease, or the Gatekeeper is away", "end a lease")
        if self._cut:
            raise self._cut

    def _ask(self, want, pause, most, **wish):
        """Asks the Gatekeeper until the lease has come to a state; returns the answer."""
        while True:
            r = None
            try:
                r = self._node.ask_share({"id": self._number, **wish})
            except Error as e:
                if e.code not in (layout.OVERLOADED, layout.UNAVAILABLE):
                    raise
            state = r["state"] if r else layout.SHARE_COMES
            if state == want:
                return r
            if want == layout.SHARE_HOLDS and state != layout.SHARE_COMES:
                raise Error(layout.UNAVAILABLE, "the lease has been ended before it was there", "share")
            if self._node.done.wait(pause):
                raise Error(layout.UNAVAILABLE, "the node has ended", "share")
            pause = min(2 * pause, most)


class Borrows:
    """The standing leases that the node has got, as its program has told. Safe for concurrent use."""

    def __init__(self):
        self._lock = threading.Lock()
        self._all = {}  # by region: Uses

    def add(self, region, by):
        with self._lock:
            self._all.setdefault(region, []).append(by)

    def drop(self, region, by):
        with self._lock:
            self._all[region].remove(by)
            if not self._all[region]:
                del self._all[region]

    def by(self, region):
        """The Use of a slot by which the node may read a region: that of the newest lease. NO_USE if there is none."""
        with self._lock:
            return max(self._all.get(region, ()), key=lambda u: u.number, default=wire.NO_USE)
