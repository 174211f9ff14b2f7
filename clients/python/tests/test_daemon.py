"""What a program and its blade's daemon say to each other."""

import json
import os
import socket
import threading
import unittest

from bifrost import Error, layout
from bifrost.daemon import Session

POLICIES = [{"service": "S", "method": "one", "policy": "none"}, {"service": "S", "policy": "recover"}]
RACK = {"policy_version": 1, "policies": POLICIES}
JOINED = {"identity": {"Name": "n", "Address": "::1", "Incarnation": 1, "Blade": "c1", "Blocks": [4, 9]}, "mtu": 1500, "rack": RACK}


class ListenTest(unittest.TestCase):
    """A node's sockets come from the daemon."""

    def setUp(self):
        self.name = "@bifrost/test-python-%d" % os.getpid()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.addCleanup(listener.close)
        listener.bind("\0" + self.name[1:])
        listener.listen()
        self.made, self.held, self.pages = [], [], []
        self.refuse = False
        thread = threading.Thread(target=self.serve, args=(listener,), daemon=True)
        thread.start()
        self.addCleanup(thread.join)
        self.session = Session("n", self.name)
        self.addCleanup(self.session.leave)
        self.addCleanup(lambda: [s.close() for s in self.made])

    def serve(self, listener):
        conn, _ = listener.accept()
        with conn:
            for line in conn.makefile():
                request = json.loads(line)
                answer = {"id": request["id"]}
                if request["op"] == "join":
                    answer["joined"] = JOINED
                if request["op"] == "holdings":
                    self.held.append(request["held"])
                    answer["held"] = self.pages.pop(0)
                if request["op"] != "listen" or self.refuse:
                    if self.refuse:
                        answer["code"] = layout.PERMISSION_DENIED
                    conn.sendall(json.dumps(answer).encode() + b"\n")
                    continue
                made = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
                made.bind((request["address"], 0))
                made.setblocking(False)
                self.made.append(made)
                news = json.dumps({"rack": {"mtu": 1500}}).encode() + b"\n"
                conn.sendall(news)
                socket.send_fds(conn, [json.dumps(dict(answer, socket=True)).encode() + b"\n" + news], [made.fileno()])

    def test_joined(self):
        self.assertEqual((self.session.blocks, self.session.before), ([4, 9], 0))

    def test_holdings(self):
        """They come in pages. When the Gatekeeper has begun anew, so does the node."""
        slots = [{"slot": n} for n in range(3)]
        self.pages = [
            {"reading": 7, "slots": slots[:1], "next": 1}, {"reading": 8, "slots": slots[:2], "next": 2}, {"reading": 8, "slots": slots[:2], "next": 2},
            {"reading": 8, "slots": slots[2:], "regions": ["::1001:0:400:0:4000:0"]}, {},
        ]
        self.assertEqual(self.session.holdings(), (slots, [bytes.fromhex("00000000100100000400000040000000")]))
        self.assertEqual(self.held[-2:], [{"reading": 8, "from": 2}, {"reading": 8, "heard": True}])
        self.pages = [{"reading": 7, "regions": ["::1001:0:400:0:4000:0"]}, {}]
        self.assertEqual(self.session.holdings(now=True), ([], [bytes.fromhex("00000000100100000400000040000000")]))
        self.assertEqual(self.held[-2:], [{"reading": 0, "from": 0, "now": True}, {"reading": 7, "heard": True, "now": True}])

    def test_listen(self):
        for n in range(3):
            with self.session.listen("::1", layout.PORT_RPC) as mine:
                self.assertEqual(mine.getsockname(), self.made[n].getsockname())
                self.assertTrue(mine.getblocking())
                self.assertFalse(os.get_inheritable(mine.fileno()))
                mine.sendto(b"hello", self.made[n].getsockname()[:2])
                self.assertEqual(mine.recv(10), b"hello")

    def test_policies(self):
        """What is said of a method holds for its form by reference, too; what is said of a service for all other methods."""
        self.assertEqual([self.session.policy("S", m) for m in ("one", "one.ref", "two.ref")], ["none", "none", "recover"])
        self.assertIsNone(self.session.policy("T", "one.ref"))

    def test_refused(self):
        self.refuse = True
        with self.assertRaises(Error) as caught:
            self.session.listen("::1", 45102)
        self.assertEqual(caught.exception.code, layout.PERMISSION_DENIED)
        self.refuse = False
