"""A node whose network and daemon are the test's."""

import socket
import threading
import time
import unittest

from bifrost import layout, node, wire
from bifrost.errors import Error

SELF, A, B = "fd00:b1f0:0:2::5", "fd00:b1f0:0:2::a", "fd00:b1f0:0:2::b"
PATIENCE = 20.0  # seconds until a test fails
POINTER = wire.make_pointer(16, 1, 64, 1)
REGION = wire.region_of(POINTER)


def serves(*nodes, incarnation=9, **options):
    """The Gatekeeper's answer."""
    return dict(nodes=list(nodes), incarnations=[incarnation] * len(nodes), **options)


class Endpoint:
    """A socket of the node whose other end is the test's."""

    def __init__(self, port):
        self.port = port
        self._own, self._other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._own.setblocking(False)
        self.sent = []
        self.news = threading.Condition()

    def fileno(self):
        return self._own.fileno()

    def setblocking(self, _):
        pass

    def getsockopt(self, *_):
        return 1 << 20

    def recvfrom(self, n):
        source, port, datagram = self._own.recv(n).split(b"|", 2)
        return datagram, (source.decode(), int(port))

    def sendto(self, datagram, to):
        with self.news:
            self.sent.append((to, bytes(datagram)))
            self.news.notify_all()

    def sendmsg(self, pieces, _ancillary, _flags, to):
        self.sendto(b"".join(pieces), to)

    def inject(self, datagram, source, port=None):
        self._other.send(b"%s|%d|%s" % (source.encode(), port or self.port, datagram))

    def close(self):
        self._own.close()
        self._other.close()


class Session:
    """A daemon's session, whose answers the test gives."""

    name, address, incarnation, blocks, mtu, rack = "test", SELF, 3, (4,), 1500, {"dsm_prefix": 16}
    before = 0
    held = (), ()  # the slots and the regions of a former incarnation

    def __init__(self):
        self.done, self.on_end = threading.Event(), None
        self.endpoints = {}  # by port
        self.serving = serves(A)
        self.asked = []
        self.who = {}  # by address
        self.more = threading.Semaphore(0)  # for each question for blocks that is answered
        self.refuses = False  # to give any
        self.most = layout.MAX_BLOCKS
        self.there = threading.Event()  # the Gatekeeper is
        self.there.set()

    def holdings(self, now=False):
        return self.owns() if now else self.held

    def owns(self):
        return (), ()

    def policy(self, *_):
        return None

    def listen(self, _, port):
        return self.endpoints.setdefault(port, Endpoint(port))

    def ask(self, op, **fields):
        self.there.wait(PATIENCE)
        self.asked.append((op, fields))
        if op == "blocks":
            self.more.acquire(timeout=PATIENCE)
            if self.refuses:
                raise Error(layout.UNAVAILABLE)
            return {"blocks": list(range(4, 4 + min(fields["want"], self.most)))}
        if op == "serving":
            return {"serving": self.serving}
        if op == "share":
            return {"share": self.share(**fields["share"])}
        if op == "who":
            answer = self.who.get(fields["address"], {"name": "n"})
            if answer is None:
                raise Error(layout.NOT_FOUND)
            return {"who": answer}
        return {}

    def leave(self):
        self.there.set()
        self.more.release(100)


class NodeTest(unittest.TestCase):
    """A node whose network and daemon are the test's."""

    options = {}  # of the session

    def setUp(self):
        self.session = Session()
        vars(self.session).update(self.options)
        self.node = node.Node(self.session)
        self.rpc, self.direct, self.bulk = (self.session.endpoints[p] for p in (layout.PORT_RPC, layout.PORT_DIRECT, layout.PORT_BULK))
        self.addCleanup(self.node.close, 0.0)

    def start(self, **options):
        """Makes a call in a thread; returns what waits for its outcome."""
        outcome = []

        def call():
            try:
                outcome.append(self.node.call("Adder", "add", options.pop("payload", b"1+1"), **options))
            except Error as e:
                outcome.append(e)

        thread = threading.Thread(target=call)
        thread.start()

        def wait():
            thread.join(PATIENCE)
            self.assertEqual(len(outcome), 1)
            return outcome[0]

        return wait

    def take(self, endpoint, meant=lambda to, b: True):
        """The first datagram that is sent and meant, and not taken yet: where to, and the datagram."""
        with endpoint.news:

            def find():
                return next((i for i, s in enumerate(endpoint.sent) if meant(*s)), None)

            self.assertTrue(endpoint.news.wait_for(lambda: find() is not None, PATIENCE), endpoint.sent)
            return endpoint.sent.pop(find())

    def call(self, endpoint=None, to=A):
        """The next copy of a call to a node that is out."""

        def meant(t, b):
            m = wire.Message.parse(b)
            return t[0] == to and not m.flags & layout.FLAG_SETTLED and m.call in self.node._caller.calls

        return wire.Message.parse(self.take(endpoint or self.direct, meant)[1])

    def calls(self, n):
        """Copies of n calls that are out at the same time, by slot."""
        all = {}
        while len(all) < n:
            m = self.call()
            all[m.slot] = m
        return all

    def first(self):
        """The next first packet of a large message, where no part has been sent that was not taken."""
        to, b = self.take(self.bulk)
        self.assertEqual(to, (A, layout.PORT_BULK))
        return wire.Message.parse(b)

    def reply(self, m, source=A, flags=0, **fields):
        answer = wire.Message(**{name: getattr(m, name) for name in layout.RPC_FIELDS if name not in ("magic", "version")})
        answer.type, answer.timeout, answer.callee_incarnation = layout.TYPE_REPLY, 0, 9
        answer.flags = m.policy | flags
        for name, value in fields.items():
            setattr(answer, name, value)
        (self.bulk if flags & layout.FLAG_MORE else self.rpc).inject(answer.pack(), source)

    def until(self, true):
        end = time.monotonic() + PATIENCE
        while not true() and time.monotonic() < end:
            time.sleep(0.001)
        self.assertTrue(true())

    def forgotten(self):
        """Waits until nobody is to be told to forget anything."""
        self.until(lambda: self.node._forgets.due() is None)

    def refuse(self, m, source=A):
        self.reply(m, source, layout.FLAG_UNBEGUN, type=layout.TYPE_EXCEPTION, code=layout.UNAVAILABLE, payload=b"the node is closing")
