"""Standing leases, with a Gatekeeper, a switch and memory that are the test's."""

import threading
import types
import unittest

from thrift.Thrift import TType

from bifrost import layout, leases, refs, wire
from bifrost.errors import Error
from bifrost.ttypes import Lease
from harness import PATIENCE, POINTER, REGION, SELF, A, B, NodeTest

BINARY = TType.STRING, "BINARY"
LEASE = Lease(5, POINTER, 80, 7)
USE = wire.Use(80, 7)
COMES, HOLDS, ENDS, ENDED = {"state": layout.SHARE_COMES}, {"state": layout.SHARE_HOLDS, "slot": 80, "number": 7}, {"state": 3}, {"state": layout.SHARE_ENDED}


class LeasesTest(NodeTest):
    def setUp(self):
        super().setUp()
        self.account, self.requests = self.node.memory.account, []
        self.node.memory._run = self.run_memory
        self.says, self.wishes, self.news = [], [], threading.Condition()
        self.session.share = self.share

    def run_memory(self, requests, until=None):
        self.requests += requests
        if self.account.lends(REGION) and any(r.op in (layout.OP_WRITE, layout.OP_FREE) for r in requests):
            return types.SimpleNamespace(code=layout.OVERLOADED, flags=0, pieces={})
        return types.SimpleNamespace(code=layout.OK, flags=0, pieces={r.place: b"value"[r.place :] for r in requests})

    def share(self, **wish):
        """The Gatekeeper's next answer. There is one question at a time."""
        with self.news:
            self.wishes.append(wish)
            self.news.notify_all()
            if not self.news.wait_for(lambda: self.says, PATIENCE):
                raise Error(layout.INTERNAL, "the test says nothing")
            said = self.says.pop(0)
        if isinstance(said, Error):
            raise said
        return said

    def say(self, *answers):
        with self.news:
            self.says += answers
            self.news.notify_all()

    def own(self):
        """A Ref to a value of the node's in REGION."""
        self.account.add([REGION])
        return refs.Ref(self.node, BINARY, True, None, POINTER, 5)

    def fails(self, f, *args, **named):
        with self.assertRaises(Error) as caught:
            f(*args, **named)
        return caught.exception.code

    def test_share(self):
        """It asks until the lease is there; the value can be neither written nor freed until it is taken back."""
        ref = self.own()
        self.say(COMES, Error(layout.OVERLOADED), Error(layout.UNAVAILABLE), COMES, HOLDS)
        lease = ref.share(A, PATIENCE)
        self.assertEqual(lease, LEASE)
        self.assertEqual(self.wishes, [{"id": 1, "lessee": A, "regions": [REGION]}] * 5)
        self.assertEqual(self.fails(self.node.memory.write, POINTER, b"x"), layout.PERMISSION_DENIED)
        self.assertEqual(self.fails(ref.free), layout.PERMISSION_DENIED)
        self.say({**HOLDS, "number": 9})
        other = ref.share(B, PATIENCE)
        self.assertEqual(self.wishes.pop()["id"], 2)
        self.wishes.clear()
        self.say(ENDS, Error(layout.UNAVAILABLE), ENDED)
        ref.unshare(lease, timeout=PATIENCE)
        self.assertEqual(self.wishes, [{"id": 1, "end": True}] * 3)
        self.assertEqual(self.fails(ref.free), layout.PERMISSION_DENIED)
        ref.unshare(lease, timeout=PATIENCE)  # it is not there any more
        self.assertEqual(len(self.wishes), 3)
        self.say(ENDED)
        ref.unshare(timeout=PATIENCE)
        self.assertEqual((self.wishes[3:], other.number), ([{"id": 2, "end": True}], 9))
        ref.free()

    def test_share_what_is_not_in_memory(self):
        """It is put there; nothing is shared of no bytes."""
        stored = []
        self.node.memory.alloc = lambda size: self.account.add([REGION]) or POINTER
        self.node.memory.write = lambda pointer, b: stored.append(bytes(b))
        self.say(HOLDS)
        ref = refs.put(self.node, BINARY, b"value")
        self.assertEqual(ref.share(A, PATIENCE), LEASE)
        self.assertEqual((stored, ref._pointer), ([b"value"], POINTER))
        none = refs.put(self.node, BINARY, b"").share(A, PATIENCE)
        self.assertEqual((none, len(self.wishes)), (Lease(0, b""), 1))
        self.assertEqual(refs.borrow(self.node, BINARY, none).load(), b"")

    def test_share_is_refused(self):
        """Nothing is left of it."""
        for said, code in (Error(layout.NOT_FOUND), layout.NOT_FOUND), (ENDED, layout.UNAVAILABLE), (ENDS, layout.UNAVAILABLE):
            ref = self.own()
            self.say(said)
            self.wishes.clear()
            self.assertEqual(self.fails(ref.share, A, PATIENCE), code)
            self.say(ENDED)
            self.until(lambda: not self.account.lends(REGION))
            self.assertEqual(self.wishes[-1]["end"], True)
            ref.unshare()
            ref.free()

    def test_share_is_given_up(self):
        """It goes on, and then it ends: one question is out at a time."""
        ref = self.own()
        self.assertEqual(self.fails(ref.share, A, 0.05), layout.DEADLINE_EXCEEDED)
        self.assertEqual(len(self.wishes), 1)
        self.say(HOLDS)
        with self.news:
            self.assertTrue(self.news.wait_for(lambda: len(self.wishes) == 2, PATIENCE))
        self.assertEqual(self.wishes[1], {"id": 1, "end": True})
        self.assertTrue(self.account.lends(REGION))
        self.say(ENDED)
        self.until(lambda: not self.account.lends(REGION))

    def test_unshare_is_given_up(self):
        ref = self.own()
        self.say(HOLDS)
        ref.share(A, PATIENCE)
        self.assertEqual(self.fails(ref.unshare, timeout=0.05), layout.DEADLINE_EXCEEDED)
        self.say(ENDED)
        ref.unshare(timeout=PATIENCE)
        self.assertEqual([w for w in self.wishes if w.get("end")], [{"id": 1, "end": True}])

    def test_the_node_ends(self):
        ref = self.own()
        self.say(HOLDS)
        ref.share(A, PATIENCE)
        self.node.done.set()
        self.say(Error(layout.UNAVAILABLE, "the compute daemon is gone"))
        self.assertEqual(self.fails(ref.unshare, timeout=PATIENCE), layout.UNAVAILABLE)

    def test_what_cannot_be_shared(self):
        ref = self.own()
        for reader in SELF, "fd00:b1f0:0:2:0:0:0:5", "nobody", "10.0.0.1":
            self.assertEqual(self.fails(ref.share, reader), layout.BAD_REQUEST, reader)
        lent = refs.Ref(self.node, BINARY, True, None, POINTER, 5, lent=True)
        self.account.drop([REGION])
        for other in lent, refs.borrow(self.node, BINARY, LEASE):
            self.assertEqual(self.fails(other.share, A), layout.BAD_REQUEST)
        self.account.add([REGION])
        ref.free()
        self.assertEqual(self.fails(ref.share, A), layout.BAD_REQUEST)
        self.assertEqual(self.wishes, [])

    def test_borrow(self):
        """Reads and calls name the lease by which the value is there. Its end here leaves the value to its owner."""
        ref = refs.borrow(self.node, BINARY, LEASE)
        self.assertEqual((ref.load(), self.requests[-1].by), (b"value", USE))
        outcome = self.start(pointers=[POINTER])
        m = self.call()
        self.assertEqual((m.listed, self.account.lends(REGION)), ([(USE, [REGION])], False))
        self.reply(m, listed=(), payload=b"2")
        self.assertEqual(outcome(), ({}, b"2"))
        newer = refs.borrow(self.node, BINARY, Lease(5, POINTER, 96, 8))
        older = refs.borrow(self.node, BINARY, Lease(5, POINTER, 112, 6))
        ref.load()
        self.assertEqual(self.requests[-1].by, wire.Use(96, 8), "the newest lease")
        newer.free()
        ref.load()
        self.assertEqual(self.requests[-1].by, USE)
        self.assertEqual(self.fails(self.node.memory.write, POINTER, b"x"), layout.PERMISSION_DENIED)
        outcome = self.start(pointers=[POINTER], oneway=True)
        self.assertEqual(outcome().code, layout.PERMISSION_DENIED)
        for r in ref, older:
            with r as b:
                self.assertEqual(len(b), 5)
        self.assertEqual({r.op for r in self.requests}, {layout.OP_READ})
        self.assertEqual(self.fails(ref.load), layout.BAD_REQUEST)
        self.assertEqual(self.fails(self.node.memory.read, POINTER, 5), layout.PERMISSION_DENIED)

    def test_what_is_the_nodes_own_goes_before_leases(self):
        ref = refs.borrow(self.node, BINARY, LEASE)
        self.account.add([REGION])  # its owner has handed it over
        ref.load()
        self.assertEqual(self.requests[-1].by, wire.NO_USE)

    def test_what_is_no_lease(self):
        beyond = layout.BLOCKS * layout.BLOCK_SLOTS
        for change in (
            dict(length=0), dict(length=-1), dict(length=layout.MAX_REGION + 1), dict(length=None), dict(address=b""), dict(address=b"short"), dict(address=None),
            dict(address=wire.make_pointer(17, 1, 64, 1)), dict(slot=0), dict(slot=-1), dict(slot=beyond), dict(slot=None), dict(number=0), dict(number=-1), dict(number=None),
        ):
            lease = Lease(**{**vars(LEASE), **change})
            self.assertEqual(self.fails(refs.borrow, self.node, BINARY, lease), layout.BAD_REQUEST, change)
        self.account.add([REGION])
        self.assertEqual(self.fails(refs.borrow, self.node, BINARY, LEASE), layout.BAD_REQUEST)
        self.assertEqual(self.node.memory.borrows._all, {})

    def test_no_leases(self):
        self.assertEqual(leases.Borrows().by(REGION), wire.NO_USE)


if __name__ == "__main__":
    unittest.main()
