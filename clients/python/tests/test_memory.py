"""The memory client against a simulated machine with two copies, over a network that loses packets."""

import random
import socket
import time
import unittest

from bifrost import layout, wire
from bifrost.errors import Error
from bifrost.memory import Memory


class Copy:
    """One copy of a memory machine: one region of bytes, and what it has answered."""

    def __init__(self, number):
        self.number, self.bytes, self.seen = number, bytearray(1 << 16), {}
        self.slots, self.full = [0] * layout.BATCH_SLOTS, False

    def handle(self, to, m):
        """Carries a request out once, and answers it as often as it comes."""
        if m.request not in self.seen or to[6] == layout.OP_SETTLE:
            at, op = wire.offset(to), to[6]
            answer = wire.Memory(verdict=layout.KIND_REPLY << 8, request=m.request, incarnation=m.incarnation, length=m.length)
            if op == layout.OP_ALLOC:
                at = wire.slot(to) % layout.BATCH_SLOTS
                if self.full or self.slots[at] != wire.generation(to) - 1:
                    answer.verdict, answer.length = layout.KIND_REPLY << 8 | layout.NO_SPACE, 0
                    answer.flags = 0 if self.full else layout.DSM_SLOT
                else:
                    self.slots[at] = wire.generation(to) | 1 << 31
            elif op == layout.OP_FREE and self.slots[wire.slot(to) % layout.BATCH_SLOTS] >> 31:
                self.slots[wire.slot(to) % layout.BATCH_SLOTS] -= 1 << 31
            if op == layout.OP_WRITE:
                self.bytes[at : at + m.length] = m.data
            elif op == layout.OP_SETTLE:
                answer.flags = layout.DSM_APPLIED if m.length in self.seen else m.flags
            self.seen[m.request] = answer
        answer, op = self.seen[m.request], to[6]
        answer.mirror_epoch, answer.copy, answer.members = 1, self.number, 2
        if op == layout.OP_READ:
            at = wire.offset(to)
            answer.data = bytes(self.bytes[at : at + m.length])
        if op == layout.OP_SLOTS:
            answer.data = b"".join(s.to_bytes(4, "big") for s in self.slots)
        return answer.pack(), to


class Network:
    """A socket whose other end is a switch with a mirrored machine behind it, and a clock."""

    def __init__(self, denies=lambda op: False, why=layout.PERMISSION_DENIED):
        self.why, self.sent = why, []
        self.copies, self.denies = [Copy(0), Copy(1)], denies
        self.random, self.queue, self.timeout = random.Random(1), [], 0.0
        self.now = 0.0

    def sleep(self, seconds):
        self.now += seconds

    def clock(self):
        return self.now

    def sendto(self, b, address):
        to, m = socket.inet_pton(socket.AF_INET6, address[0]), wire.Memory.parse(b)
        assert m.floor <= m.request
        self.sent.append(to[6])
        if self.denies(to[6]):
            m.verdict = layout.KIND_NACK << 8 | self.why
            self.queue.append((m.pack(), to))
            return
        for copy in self.copies[: 1 if to[6] in (layout.OP_READ, layout.OP_SLOTS) else 2]:
            if self.random.random() > 0.3:
                answer = copy.handle(to, m)
                if self.random.random() > 0.3:
                    self.queue.append(answer)

    def recvfrom(self, _):
        if not self.queue:
            self.now += self.timeout
            raise TimeoutError
        b, source = self.queue.pop(self.random.randrange(len(self.queue)))
        return b, (socket.inet_ntop(socket.AF_INET6, source), layout.PORT_DSM)

    def settimeout(self, timeout):
        self.timeout = timeout

    def fileno(self):
        return 0


class MemoryTest(unittest.TestCase):
    def client(self, network):
        rack = {"dsm_prefix": 16, "memories": [{"machine": 1, "free": 1 << 20}]}
        return Memory(network, 3, lambda: rack, 1232, lambda machine, want: [machine][:want], network.clock, network.sleep)

    def test_lossy_mirror(self):
        network = Network()
        memory = self.client(network)
        p = memory.alloc(8192)
        data = random.Random(2).randbytes(8192)
        memory.write(p, data)
        for copy in network.copies:
            self.assertEqual(copy.bytes[:8192], data)
        self.assertEqual(memory.read(p, 8192), data)
        memory.free(p)
        memory.settle()

    def test_account(self):
        """It has what is being allocated, and what is being freed."""
        network = Network()
        memory = self.client(network)
        account, send, known = memory.account, network.sendto, []

        def sendto(b, address):
            to = socket.inet_pton(socket.AF_INET6, address[0])
            if to[6] in (layout.OP_ALLOC, layout.OP_FREE):
                account.watch()
                account.listed([wire.region_of(to)])
                known.append((to[6], account.unknown() == []))
            send(b, address)

        network.sendto = sendto
        p, q = memory.alloc(64), memory.alloc(64)
        memory.free(p)
        memory.free_later([q])
        self.assertFalse(account.owns(wire.region_of(q)))
        self.until(lambda: not any(s >> 31 for c in network.copies for s in c.slots))
        self.until(lambda: not account._leaving)
        self.assertEqual(set(known), {(layout.OP_ALLOC, True), (layout.OP_FREE, True)})
        network.denies = lambda op: op == layout.OP_ALLOC
        before = set(account._owned)
        self.assertRaises(Error, memory.alloc, 64)
        self.assertEqual(account._owned, before)
        self.closes(memory)

    def closes(self, memory):
        memory._socket.close = lambda: None
        memory.close()
        memory._freer.join(10)
        self.assertFalse(memory._freer.is_alive())

    def test_slots(self):
        network = Network()
        memory = self.client(network)
        network.copies[1].slots[0] = 5  # it has had a region there that the first copy has not
        got = [memory.alloc(64) for _ in range(layout.BATCH_SLOTS - 1)]
        self.assertEqual(len({wire.slot(p) for p in got}), len(got))
        self.assertEqual([wire.generation(p) for p in got if wire.slot(p) == layout.BATCH_SLOTS], [6], "one that no copy has had")
        memory.settle()
        self.assertEqual(network.copies[0].slots, network.copies[1].slots, "what one copy has refused is freed at the other one")
        memory.alloc(64)  # the last slot that is free
        memory.free(got[7])
        again = memory.alloc(64)
        self.assertEqual((wire.slot(again), wire.generation(again)), (wire.slot(got[7]), wire.generation(got[7]) + 1))
        network.copies[0].full = True
        with self.assertRaises(Error) as caught:
            memory.alloc(64)
        self.assertEqual(caught.exception.code, layout.NO_SPACE)

    def test_denied(self):
        memory = self.client(Network(lambda op: op in (layout.OP_WRITE, layout.OP_READ)))
        p = wire.make_pointer(16, 1, 64, 1)
        for operation in lambda: memory.write(p, b"x"), lambda: memory.read(p, 1):
            with self.assertRaises(Error) as caught:
                operation()
            self.assertEqual(caught.exception.code, layout.PERMISSION_DENIED)
        memory.settle()

    def test_what_is_lent_is_written_later(self):
        network = Network()
        memory = self.client(network)
        p, lent = memory.alloc(64), [True]
        network.denies, network.why = lambda op: op == layout.OP_WRITE and lent[0], layout.OVERLOADED
        network.sleep = memory._sleep = lambda _: lent.clear() or lent.append(network.sent.count(layout.OP_WRITE) < 5)
        memory.write(p, b"data")
        self.assertEqual(memory.read(p, 4), b"data")

    def test_one_copy_has_what_is_lent_now(self):
        """The other copy gets it when the region is lent no longer."""
        network = Network()
        memory = self.client(network)
        p, network.random.random, handle = memory.alloc(64), lambda: 1.0, network.copies[1].handle
        lost = [True]
        network.denies, network.why = lambda op: op == layout.OP_WRITE and lost[0] and network.sent.count(op) in (2, 3), layout.OVERLOADED
        network.copies[1].handle = lambda to, m: (b"", to) if to[6] == layout.OP_WRITE and network.sent.count(to[6]) < 4 else handle(to, m)
        memory.write(p, b"data")
        self.assertEqual([bytes(c.bytes[:4]) for c in network.copies], [b"data", b"data"])

    def until(self, true):
        end = time.monotonic() + 20
        while not true() and time.monotonic() < end:
            time.sleep(0.001)
        self.assertTrue(true())

    def test_what_the_program_lends(self):
        network = Network(lambda op: op in (layout.OP_WRITE, layout.OP_FREE), layout.OVERLOADED)
        memory = self.client(network)
        p = memory.alloc(64)
        region = [wire.region_of(p)]
        memory.account.lend(region)
        for operation in lambda: memory.write(p, b"x"), lambda: memory.free(p):
            with self.assertRaises(Error) as caught:
                operation()
            self.assertEqual((caught.exception.code, "that is not over" in caught.exception.reason), (layout.PERMISSION_DENIED, True))
        memory.account.back(region)  # nobody waits for that call any more
        with self.assertRaises(Error) as caught:
            memory.write(p, b"x")
        self.assertEqual(caught.exception.code, layout.OVERLOADED)
        self.assertGreater(network.now, 30)
        memory.free(p)
        self.assertFalse(memory.account.owns(region[0]))
        tries = network.sent.count(layout.OP_FREE)
        self.until(lambda: network.sent.count(layout.OP_FREE) > tries + 2)
        self.assertEqual(memory.account._leaving, set(region))
        network.denies = lambda op: False
        self.until(lambda: not any(s >> 31 for c in network.copies for s in c.slots))
        self.closes(memory)

    def test_what_is_not_the_nodes(self):
        network = Network()
        memory = self.client(network)
        p = memory.alloc(64)
        memory.free(p)
        network.sent.clear()
        for operation in lambda: memory.write(p, b"x"), lambda: memory.read(p, 1), lambda: memory.free(p):
            with self.assertRaises(Error) as caught:
                operation()
            self.assertEqual(caught.exception.code, layout.PERMISSION_DENIED)
        self.assertEqual(network.sent, [])

    def test_an_allocation_that_is_denied(self):
        network = Network(lambda op: op == layout.OP_ALLOC)
        memory = self.client(network)
        with self.assertRaises(Error) as caught:
            memory.alloc(64)
        self.assertEqual(caught.exception.code, layout.PERMISSION_DENIED)
        memory.settle()
        network.denies = lambda op: op == layout.OP_ALLOC and network.sent.count(op) > 2  # a copy of it was let through
        network.random.random, handle = lambda: 1.0, network.copies[0].handle
        network.copies[0].handle = lambda to, m: (b"", to) if handle(to, m) and to[6] == layout.OP_ALLOC else handle(to, m)
        with self.assertRaises(Error) as caught:
            memory.alloc(64)
        self.assertEqual(caught.exception.code, layout.PERMISSION_DENIED)
        memory.settle()
        self.assertEqual([s >> 31 for s in network.copies[0].slots], [0] * layout.BATCH_SLOTS)

    def test_bad_arguments(self):
        memory = self.client(Network())
        for operation in lambda: memory.alloc(0), lambda: memory.alloc(1 << 41), lambda: memory.free(b"short"):
            with self.assertRaises(Error) as caught:
                operation()
            self.assertEqual(caught.exception.code, layout.BAD_REQUEST)


if __name__ == "__main__":
    unittest.main()
