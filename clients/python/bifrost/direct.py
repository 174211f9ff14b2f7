"""Exactly-once calls go straight to a node: who takes them, and who is to forget them. No socket, clock or thread.

Servers and Forgets are not safe for concurrent use: the shell (node.py) holds a lock. Times are in seconds, on one clock.
"""

import random

from . import layout

LIFETIME = 1.0  # after which the Gatekeeper is asked again who takes the calls of a method, and a node that has refused one is called again
STALE = 2.0  # after which nobody is called of whom the Gatekeeper said so then, unless it does not answer
PATIENCE = 1.0  # for such an answer
AGAIN = 0.1  # until the Gatekeeper is asked again if it has failed, or if all the nodes that it names have refused a call
FORGET_AFTER = 0.02  # until a node is told again what to forget, at first


class NobodyServes(Exception):
    """No node takes the exactly-once calls of a method. Its text says why."""


class _Method:
    """What is known of a method."""

    def __init__(self):
        self.nodes, self.why = None, ""  # who takes its calls, as the Gatekeeper says; why nobody does
        self.asked = self.told = float("-inf")  # when it was asked then, and when it said so
        self.asking, self.failed = None, float("-inf")  # when it was asked and has not answered yet, and when it has failed to
        self.refused = {}  # when nodes have refused calls, since they close
        self.turn = random.randrange(1 << 16)


class Servers:
    """The nodes that take exactly-once calls, by method. ask is called with a method about which the Gatekeeper is to be
    asked; told takes the answer. A call is bound to the node that it goes to first: all copies of it go there."""

    def __init__(self, ask):
        self._ask, self._methods = ask, {}

    def choose(self, now, method, since):
        """The node that a call goes to which began at since; None while that is not known. NobodyServes if there is none."""
        k = self._methods.setdefault(method, _Method())
        nodes = [n for n in k.nodes or () if now - k.refused.get(n, float("-inf")) >= LIFETIME]
        if k.nodes == [] and k.asked >= since:
            raise NobodyServes(k.why)
        again = max(k.told + (LIFETIME if nodes else AGAIN if k.nodes else 0), k.failed + AGAIN)
        if k.asking is None and now >= again:
            k.asking = now
            self._ask(method)
        if not nodes or now - k.told > STALE and (k.asking is None or now - k.asking < PATIENCE):
            return None
        k.turn += 1
        return nodes[k.turn % len(nodes)]

    def told(self, now, method, nodes, why=""):
        """Takes the Gatekeeper's answer: the nodes; if there are none, why."""
        k = self._methods[method]
        k.why = why
        k.nodes, k.asked, k.told, k.asking = nodes, k.asking, now, None
        k.refused = {n: at for n, at in k.refused.items() if n in nodes}

    def failed(self, now, method):
        """Notes that the Gatekeeper has not answered."""
        k = self._methods[method]
        k.failed, k.asking = now, None

    def refused(self, now, method, node):
        """Notes that a node has refused a call: it closes."""
        k = self._methods[method]
        k.refused[node], k.told = now, float("-inf")


class _Forgetter:
    """A node that is to forget calls, until it says that it has."""

    def __init__(self, now):
        self.calls = {}  # ids, in order
        self.due, self.interval = now, FORGET_AFTER


class Forgets:
    """What calls nodes are to forget: nobody asks for their outcomes any more."""

    def __init__(self):
        self._nodes = {}

    def add(self, now, node, id):
        """Has a node told of a call."""
        self._nodes.setdefault(node, _Forgetter(now)).calls[id] = None

    def tick(self, now):
        """What is to be told now: (node, ids, whether the node has not answered for long) each."""
        out = []
        for node, f in self._nodes.items():
            if f.due <= now:
                out.append((node, list(f.calls), f.interval >= layout.MAX_TIMEOUT))
                f.due, f.interval = now + f.interval, min(2 * f.interval, layout.MAX_TIMEOUT)
        return out

    def forgotten(self, now, node, ids):
        """Takes a node's word that it has forgotten calls."""
        f = self._nodes.get(node)
        if f is None:
            return
        for id in ids:
            f.calls.pop(id, None)
        f.due, f.interval = now + FORGET_AFTER, FORGET_AFTER
        if not f.calls:
            del self._nodes[node]

    def gone(self, node):
        """Notes that a node is gone for good, and what it had with it."""
        self._nodes.pop(node, None)

    def due(self):
        """When tick has something to do; None while it has not."""
        return min((f.due for f in self._nodes.values()), default=None)
