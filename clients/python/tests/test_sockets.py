"""Endpoints of a rack in one process."""

import socket
import struct
import threading
import unittest

from bifrost import layout
from bifrost.sockets import Relayed


class RelayedTest(unittest.TestCase):
    def setUp(self):
        self.daemon, stream = socket.socketpair()
        self.endpoint = Relayed(stream)
        self.addCleanup(self.daemon.close)
        self.addCleanup(self.endpoint.close)

    def frame(self, datagram, port=7):
        return struct.pack(">HH16s", len(datagram), port, socket.inet_pton(socket.AF_INET6, "fd00::2")) + datagram

    def test_receives_whole_datagrams(self):
        self.endpoint.setblocking(False)
        both = self.frame(b"one") + self.frame(b"") + self.frame(b"x" * 60000, 8)
        got = []
        for at in range(0, len(both), 1000):
            self.daemon.sendall(both[at : at + 1000])
            with self.assertRaises(BlockingIOError):
                while True:
                    got.append(self.endpoint.recvfrom(65536))
        self.assertEqual([(b, source[:2]) for b, source in got], [(b"one", ("fd00::2", 7)), (b"", ("fd00::2", 7)), (b"x" * 60000, ("fd00::2", 8))])

    def test_sends_whole_datagrams(self):
        self.endpoint.setblocking(False)
        want = b""
        for n in range(40):  # more than the stream holds at a time
            want += self.frame(bytes([n]) * 60000, layout.PORT_BULK)
        got = bytearray()

        def daemon():
            while len(got) < len(want):
                got.extend(self.daemon.recv(100000))

        reader = threading.Thread(target=daemon)
        reader.start()
        for n in range(40):
            self.endpoint.sendmsg([bytes([n]), bytes([n]) * 59999], [], 0, ("fd00::2", layout.PORT_BULK))
        reader.join(60)
        self.assertTrue(bytes(got) == want)

    def test_end(self):
        self.daemon.close()
        with self.assertRaises(OSError):
            self.endpoint.recvfrom(65536)

    def test_timeout(self):
        self.endpoint.settimeout(0.01)
        with self.assertRaises(TimeoutError):
            self.endpoint.recvfrom(65536)


if __name__ == "__main__":
    unittest.main()
