"""Which regions a node owns, and which of them it lends, as far as it knows. No socket or clock; safe for concurrent use."""

import collections
import threading


class Account:
    """Regions are numbers (wire.region_of). What the program knows, or a thread of the node's, is in the account at each moment (audit.py rests on that)."""

    def __init__(self):
        self._lock = threading.Lock()
        self._owned, self._lent = set(), collections.Counter()
        self._leaving = set()  # what is being freed, or handed over by an answer that is not kept yet
        self._seen = None  # what was noted since watch, until listed
        self._unknown = set()  # what of that list was not noted

    def add(self, regions):
        """The node owns regions: it has received them, or is about to allocate them."""
        with self._lock:
            self._owned.update(regions)
            self._note(regions)

    def leave(self, regions):
        """The program does not own regions any more: the node is about to free them, or to hand them over by an answer."""
        with self._lock:
            self._owned.difference_update(regions)
            self._leaving.update(regions)

    def left(self, regions):
        """Regions that were about to leave have done so."""
        with self._lock:
            self._leaving.difference_update(regions)

    def drop(self, regions):
        """The node does not own regions any more: the program has freed them, or a one-way hands them over."""
        with self._lock:
            self._owned.difference_update(regions)

    def owns(self, region):
        """Whether the program owns a region. Allocations under way count as owned, and so do frees that the program waits for."""
        with self._lock:
            return region in self._owned

    def lend(self, regions):
        """A call begins which lends regions, and which somebody waits for."""
        with self._lock:
            self._lent.update(regions)

    def back(self, regions):
        """Nobody waits any more for a call that lent regions."""
        with self._lock:
            self._lent.subtract(regions)
            self._lent = +self._lent

    def lends(self, region):
        """Whether the program waits for a call that lends a region: nobody writes it or frees it before."""
        with self._lock:
            return self._lent[region] > 0

    # For one audit at a time:

    def watch(self):
        """Begins to note what is in the account now, and what comes."""
        with self._lock:
            self._seen, self._unknown = self._owned | self._leaving, set()

    def explain(self, regions):
        """Notes regions, too, which are not in the account, though the switch may have them as the node's still."""
        with self._lock:
            self._note(regions)

    def listed(self, regions):
        """Takes a list of what the node has owned since watch. What of it is not noted is unknown until it comes."""
        with self._lock:
            self._unknown, self._seen = set(regions) - self._seen, None

    def unknown(self):
        """What has not come yet. Nothing more is noted."""
        with self._lock:
            unknown, self._unknown = self._unknown, set()
            return sorted(unknown)

    def _note(self, regions):
        self._unknown.difference_update(regions)
        if self._seen is not None:
            self._seen.update(regions)
