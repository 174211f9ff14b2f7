"""Calls go straight to a node: who takes them, and who is to forget calls. No socket, clock or thread.

Servers and Forgets are not safe for concurrent use: the shell (node.py) holds a lock. Times are in seconds, on one clock.
"""

import random
import typing

from . import layout

LIFETIME = 1.0  # after which the Gatekeeper is asked again who takes the calls of a method, and a node that has refused one is called again
STALE = 2.0  # after which nobody is called of whom the Gatekeeper said so then, unless it does not answer
PATIENCE = 1.0  # for such an answer
AGAIN, MAX_AGAIN = 0.02, 0.25  # until the Gatekeeper is asked again if it has failed, or names no node that takes a call now: at first, and at most
REPEAT = 0.02  # until a node is told again what to forget, at first


class NobodyServes(Exception):
    """No node takes the calls of a method. Its text says why."""


class Method(typing.NamedTuple):
    """A method whose calls are made; at_most_once: with policy none, so that nodes without a ledger take them, too."""

    service: str
    name: str
    at_most_once: bool


class Server(typing.NamedTuple):
    """An incarnation of a node that takes calls."""

    node: str
    incarnation: int


class _Known:
    """What is known of a method."""

    def __init__(self):
        self.servers, self.why = None, ""  # who takes its calls, as the Gatekeeper says; why nobody does
        self.awaited = False  # the servers are to come back
        self.asked = self.told = float("-inf")  # when it was asked then, and when it said so
        self.asking, self.failed = None, float("-inf")  # when it was asked and has not answered yet, and when it has failed to
        self.pause = AGAIN / 2
        self.refused = {}  # when servers have refused calls, since they close
        self.turn = random.randrange(1 << 16)

    def open(self, now, method):
        """The servers that a call can go to. A call of policy none does not wait at a node that is to come back: its next
        incarnation would not take it."""
        if self.awaited and method.at_most_once:
            return []
        return [s for s in self.servers or () if now - self.refused.get(s, float("-inf")) >= LIFETIME]

    def rest(self, usable):
        """Makes the pause until the next question longer, unless a call can leave."""
        self.pause = AGAIN / 2 if usable else min(2 * self.pause, MAX_AGAIN)


class Servers:
    """Who takes calls, by Method. ask is called with a method about which the Gatekeeper is to be asked; told takes the
    answer. A call is bound to the node that it goes to first: all copies of it go there. One of policy none is bound to
    the node's incarnation, too."""

    def __init__(self, ask):
        self._ask, self._methods = ask, {}

    def choose(self, now, method, since):
        """The Server that a call goes to which began at since; None while that is not known. NobodyServes if there is none."""
        k = self._methods.setdefault(method, _Known())
        servers = k.open(now, method)
        if k.servers == [] and k.asked >= since:
            raise NobodyServes(k.why)
        again = max(k.told + (LIFETIME if servers else k.pause if k.servers else 0), k.failed + k.pause)
        if k.asking is None and now >= again:
            k.asking = now
            self._ask(method)
        if not servers or now - k.told > STALE and (k.asking is None or now - k.asking < PATIENCE):
            return None
        k.turn += 1
        return servers[k.turn % len(servers)]

    def told(self, now, method, servers, awaited=False, why=""):
        """Takes the Gatekeeper's answer: the servers, and whether they are to come back; if there are none, why."""
        k = self._methods[method]
        k.servers, k.awaited, k.why = servers, awaited, why
        k.asked, k.told, k.asking = k.asking, now, None
        k.refused = {s: at for s, at in k.refused.items() if s in servers}
        k.rest(k.open(now, method))

    def failed(self, now, method):
        """Notes that the Gatekeeper has not answered."""
        k = self._methods[method]
        k.failed, k.asking = now, None
        k.rest(False)

    def doubt(self, method):
        """Has the Gatekeeper asked again before the next call: a server may be gone, or in its next incarnation."""
        self._methods[method].told = float("-inf")

    def refused(self, now, method, server):
        """Notes that a server has refused a call: it closes."""
        k = self._methods[method]
        k.refused[server], k.told = now, float("-inf")


class _Forgetter:
    """A node that is to forget calls, until it says that it has."""

    def __init__(self, now):
        self.calls = {}  # ids, in order
        self.due, self.interval = now, REPEAT


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
        f.due, f.interval = now + REPEAT, REPEAT
        if not f.calls:
            del self._nodes[node]

    def gone(self, node):
        """Notes that a node is gone for good, and what it had with it."""
        self._nodes.pop(node, None)

    def due(self):
        """When tick has something to do; None while it has not."""
        return min((f.due for f in self._nodes.values()), default=None)
