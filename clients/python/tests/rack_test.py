"""Against a rack with the Go services Counter and Arrays; scripts/rack-test.sh runs this on one of its blades."""

import concurrent.futures
import os
import time
import unittest

from arrays import Arrays
from arrays.ttypes import LengthMismatch
from bifrost.ttypes import GlobalPointer
from counter import Counter
from thrift.Thrift import TApplicationException
from thrift.transport.TTransport import TTransportException

import bifrost
from bifrost import layout


class CallTest(unittest.TestCase):
    """Calls of a Python client to Go services."""

    @classmethod
    def setUpClass(cls):
        cls.node = bifrost.join("python-test")
        cls.addClassCleanup(cls.node.close)

    def arrays(self, **options):
        protocol = self.node.client("Arrays", timeout=30, **options)
        protocol.headers = {"tenant": "blue"}
        return Arrays.Client(protocol)

    def code(self, call, *args):
        with self.assertRaises(bifrost.Error) as caught:
            call(*args)
        return caught.exception.code

    def test_by_value(self):
        for policy in "none", "recover":
            client = self.arrays(policy=policy)
            for size in 0, 1, 1000, 60000:
                a, b = os.urandom(size), os.urandom(size)
                self.assertEqual(client.add(a, b) if size < 30000 else client.echo(a), bytes((x + y) % 256 for x, y in zip(a, b)) if size < 30000 else a)
            with self.assertRaises(LengthMismatch) as caught:
                client.add(b"1", b"22")
            self.assertEqual((caught.exception.a, caught.exception.b), (1, 2))

    def test_larger_than_a_packet(self):
        for policy in "none", "recover":
            client = self.arrays(policy=policy)
            for size in 65000, 66000, 5 << 20:
                data = os.urandom(size)
                self.assertEqual(client.echo(data), data)
            with self.assertRaises(LengthMismatch):
                client.add(data, b"1")
            with bifrost.join("small", max_message=1 << 20) as small:
                self.assertEqual(self.code(Arrays.Client(small.client("Arrays", policy=policy, timeout=30)).echo, data), layout.BAD_REQUEST)

    def test_large_values_at_once(self):
        def call(n):
            data = os.urandom(n * 100000)
            return all(self.arrays(policy=policy).echo(data) == data for policy in ("none", "recover"))

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            self.assertTrue(all(pool.map(call, range(1, 9))))

    def test_by_reference(self):
        memory = self.node.memory
        for policy in "none", "recover":
            for size in 100, 1 << 20:
                data = os.urandom(size)
                p = memory.alloc(size)
                memory.write(p, data)
                result = self.arrays(policy=policy).incrementRef(GlobalPointer(p), size, 1).address
                self.assertEqual(memory.read(result, size), bytes((b + 1) % 256 for b in data))
                memory.write(result, b"mine")  # control has changed hands
                self.assertEqual(memory.read(p, size), data)
                memory.free(result)
                memory.free(p)
                self.assertEqual(self.code(memory.read, p, 4), layout.PERMISSION_DENIED)

    def test_marked_arguments(self):
        """Exactly-once calls of a Go service whose argument is marked: inside the call, and twice from one region."""
        marks = {"add": ["amounts"]}
        counter = bifrost.refs.client(Counter.Client, marks)(self.node.client("Counter", timeout=30))
        before = counter.totals()[9]
        self.assertEqual(counter.add(9, b"\x01\x02"), before + 3)
        kind = bifrost.form.kind_of(Counter.add_args, "amounts")
        amounts = bifrost.refs.put(self.node, kind, b"\x01" * 100000)
        self.assertEqual([counter.add(9, amounts) for _ in range(2)], [before + 100003, before + 200003])
        amounts.free()
        self.assertEqual(self.code(counter.add, 9, amounts), layout.BAD_REQUEST)

    def test_lends_what_is_not_its_own(self):
        p = self.node.memory.alloc(64)
        self.node.memory.free(p)
        self.assertEqual(self.code(self.arrays().echoRef, GlobalPointer(p), 64), layout.PERMISSION_DENIED)
        self.assertEqual(self.code(self.node.memory.write, p, b"late"), layout.PERMISSION_DENIED)

    def test_who(self):
        self.assertEqual(self.node.who(self.node.address)["name"], "python-test")
        self.assertEqual(self.code(self.node.who, "fd00::1"), layout.NOT_FOUND)

    def test_errors(self):
        for policy in "none", "recover":
            began = time.monotonic()
            with self.assertRaises(TTransportException) as caught:
                Arrays.Client(self.node.client("NoSuchService", policy=policy, timeout=30)).echo(b"")
            self.assertEqual((caught.exception.code, caught.exception.never_began), (layout.UNAVAILABLE, True))
            self.assertLess(time.monotonic() - began, 10)
        self.assertEqual(self.code(self.arrays(policy="none").echoRef, GlobalPointer(b"short"), 5), layout.BAD_REQUEST)

    def test_concurrent_calls(self):
        for policy in "none", "recover":

            def call(n):
                return self.arrays(policy=policy).echo(b"%d" % n)

            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                self.assertEqual(list(pool.map(call, range(200))), [b"%d" % n for n in range(200)])

    def test_more_calls_at_once_than_slots(self):
        with bifrost.join("many") as node, concurrent.futures.ThreadPoolExecutor(100) as pool:

            def call(n):
                return Arrays.Client(node.client("Arrays", timeout=30)).echo(b"%d" % n)

            slots, end = node._caller.slots, time.monotonic() + 30
            had = len(slots._blocks)
            while len(slots._blocks) == had and time.monotonic() < end:
                self.assertEqual(list(pool.map(call, range(400))), [b"%d" % n for n in range(400)])
            self.assertGreater(len(slots._blocks), had)


if __name__ == "__main__":
    unittest.main()
