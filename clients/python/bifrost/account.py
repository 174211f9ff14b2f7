"""Which regions a node owns, and which of them it lends, as far as it knows. No socket or clock; safe for concurrent use."""

import collections
import threading


class Account:
    """Regions are numbers (wire.region_of)."""

    def __init__(self):
        self._lock = threading.Lock()
        self._owned, self._lent = set(), collections.Counter()

    def add(self, regions):
        """The node owns regions: it has allocated or received them."""
        with self._lock:
            self._owned.update(regions)

    def drop(self, regions):
        """The node does not own regions any more: it has freed them or handed them over."""
        with self._lock:
            self._owned.difference_update(regions)

    def owns(self, region):
        """Whether the node owns a region. Allocations and frees under way count as owned."""
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
