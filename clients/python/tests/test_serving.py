"""A node without a network: how it serves calls."""

import threading
import types
import unittest

from bifrost import bulk, layout, service, wire
from bifrost.errors import Error
from harness import PATIENCE, POINTER, REGION, A, B, NodeTest
from thrift.Thrift import TMessageType, TType


class Echo:
    """A processor that answers with what it is called with, when it may."""

    _processMap = {"echo": None}

    def __init__(self):
        self.may, self.seen = threading.Semaphore(0), []

    def process(self, iprot, oprot):
        _, kind, seqid = iprot.readMessageBegin()
        iprot.readStructBegin()
        iprot.readFieldBegin()
        value = iprot.readString()
        self.seen.append(service.current())
        self.may.acquire(timeout=PATIENCE)
        if kind == TMessageType.ONEWAY:
            return
        oprot.writeMessageBegin("echo", TMessageType.REPLY, seqid)
        oprot.writeStructBegin("echo_result")
        oprot.writeFieldBegin("success", TType.STRING, 0)
        oprot.writeString(value)
        oprot.writeFieldStop()
        oprot.writeMessageEnd()


class Serving:
    """A node that serves calls of policy none."""

    def setUp(self):
        super().setUp()
        self.echo = Echo()
        self.node.export("Echo", self.echo)
        self.addCleanup(self.echo.may.release, 100)

    def message(self, count, value="hello", kind=layout.TYPE_CALL, slot=16, **fields):
        p = service.protocol_of(b"\x80\x01")(service.TMemoryBuffer())
        p.writeMessageBegin("echo", TMessageType.ONEWAY if kind == layout.TYPE_ONE_WAY else TMessageType.CALL, 0)
        p.writeStructBegin("echo_args")
        p.writeFieldBegin("value", TType.STRING, 1)
        p.writeString(value)
        p.writeFieldStop()
        p.writeMessageEnd()
        number = wire.number_of(5, count)
        m = wire.Message(
            type=kind, call=wire.plain_id(A, slot, number), slot=slot, number=number, service=wire.service_hash("Echo"),
            method=wire.method_of("echo"), name_length=4, callee_incarnation=3, caller_incarnation=5, payload=p.trans.getvalue(),
        )
        for name, v in fields.items():
            setattr(m, name, v)
        return m

    def send(self, m, source=A):
        self.direct.inject(m.pack(), source)

    def answer(self):
        to, b = self.take(self.rpc)
        self.assertEqual(to, (A, layout.PORT_RPC))
        return wire.Message.parse(b)

    def counts(self, name, m, **options):
        """Sends what the node drops, and counts so."""
        before = self.node.counters[name]
        self.send(m, **options)
        self.until(lambda: self.node.counters[name] > before)


class ServeTest(Serving, NodeTest):
    """Calls of policy none that come."""

    def test_lends_on_what_it_was_lent(self):
        """A handler's call, and its read, name the slot of the incoming call that has lent the region. A call has a slot for each list."""
        others = [REGION + n for n in range(1, 5)]
        m = self.message(7, listed=[(wire.NO_USE, others), (wire.NO_USE, [REGION])])
        pointers = [wire.make_pointer(16, 1, 64, 2), POINTER]

        def handler(*_):
            with self.assertRaises(Error):
                self.node.call("Adder", "add", b"", pointers=pointers, policy="none", timeout=0.2)
            with self.assertRaises(Error):
                self.node.memory.read(POINTER, 4)

        def run(requests, until=None):
            reads.extend(requests)
            return types.SimpleNamespace(code=layout.UNAVAILABLE) if until is None else True

        self.node.memory._run, reads = run, []
        self.echo.process = handler
        self.send(m)
        _, b = self.take(self.direct, lambda to, b: wire.Message.parse(b).type == layout.TYPE_CALL)
        nested = wire.Message.parse(b)
        self.assertEqual(nested.listed, [(wire.Use(16, m.number), [others[0]]), (wire.Use(17, m.number), [REGION])])
        self.assertEqual(len({s.number for s in self.node._caller.slots.idle} & {nested.slot, nested.slot + 1}), 0)
        self.take(self.rpc, lambda to, b: wire.Message.parse(b).type != layout.TYPE_CALL)
        self.assertEqual([r.by for r in reads if r.op == layout.OP_READ], [wire.Use(17, m.number)])

    def test_runs_once(self):
        m = self.message(7)
        self.send(m)
        self.counts("duplicates", m)
        self.echo.may.release()
        answer = self.answer()
        self.assertEqual((answer.type, answer.call, answer.callee_incarnation, answer.flags), (layout.TYPE_REPLY, m.call, 3, 0))
        self.assertEqual((answer.slot, answer.number), (m.slot, m.number))
        self.assertIn(b"hello", answer.payload)
        self.send(m)
        self.assertEqual(self.answer().payload, answer.payload)
        self.assertEqual(len(self.echo.seen), 1)

    def test_given_up(self):
        m = self.message(7)
        self.send(m)
        self.until(lambda: self.echo.seen)
        self.assertFalse(self.echo.seen[0].canceled.is_set())
        m.flags, m.payload, m.trailer = m.flags | layout.FLAG_GIVEN_UP, b"", b""
        self.counts("duplicates", m)
        self.assertTrue(self.echo.seen[0].canceled.is_set())

    def test_another_incarnations(self):
        self.send(self.message(7, callee_incarnation=2))
        answer = self.answer()
        self.assertEqual((answer.code, answer.flags & layout.FLAG_UNBEGUN), (layout.UNAVAILABLE, 0))

    def test_malformed(self):
        for fields in (
            dict(callee_incarnation=0), dict(attempt=1), dict(trailer=bytes(24)), dict(flags=4), dict(flags=8), dict(flags=16), dict(flags=32), dict(flags=layout.POLICY_RECOVER), dict(kind=layout.TYPE_REPLY),
            dict(slot=15), dict(slot=1 << 20), dict(number=wire.number_of(4, 7)), dict(caller_incarnation=6), dict(call=wire.plain_id(B, 16, wire.number_of(5, 7))),
        ):
            self.counts("malformed", self.message(7, **fields))
        self.counts("malformed", self.message(7), source=B)
        self.counts("stale", self.message(7, service=1))
        self.assertEqual((self.echo.seen, self.rpc.sent), ([], []))

    def test_oneway(self):
        self.send(self.message(7, kind=layout.TYPE_ONE_WAY))
        answer = self.answer()
        self.assertEqual((answer.type, answer.flags), (layout.TYPE_REPLY, layout.FLAG_DONE))
        self.until(lambda: self.echo.seen)

    def test_large(self):
        self.echo.may.release()
        m = self.message(7, "x" * 5000)
        body = wire.first(m, self.node.budget)
        start = wire.opening(m)[3]
        self.counts("malformed", m)  # it has another port
        self.bulk.inject(m.pack(), A, layout.PORT_BULK)
        pull = bulk.Header.parse(self.take(self.bulk)[1])
        self.assertEqual((pull.kind, pull.offset, pull.callee_incarnation), (bulk.PULL, 0, 3))
        for at, n in bulk.cut([(len(start), len(body) - len(start))], pull.size):
            self.bulk.inject(pull.of(bulk.PART, offset=at, size=n).pack() + body[at : at + n], A)
        total, _, _, start = wire.opening(self.first())
        ask = bulk.Header(
            kind=bulk.PULL, answer=1, call=m.call, caller_incarnation=5, callee_incarnation=3, total=total, first=len(start), size=pull.size,
            spans=[(len(start), total - len(start))],
        )
        for source, kind in (B, bulk.GONE), (A, bulk.PART):
            self.bulk.inject(ask.pack(), source)
            self.assertEqual(bulk.Header.parse(self.take(self.bulk, lambda to, b: bulk.Header.parse(b).answer)[1]).kind, kind)
        self.bulk.inject(ask.of(bulk.DONE, size=0).pack(), A)
        self.until(lambda: not self.node._calls.owes())

    def test_closes(self):
        self.send(self.message(7))
        self.until(lambda: self.echo.seen)
        thread = threading.Thread(target=self.node.close, args=(PATIENCE,))
        thread.start()
        self.until(lambda: self.node._calls._closing)
        self.assertTrue(any(op == "export" and f["export"].get("withdraw") for op, f in self.session.asked))
        self.send(self.message(1, slot=17))
        refusal = self.answer()
        self.assertTrue(refusal.refuses)
        self.echo.may.release()
        self.assertEqual(self.answer().type, layout.TYPE_REPLY)
        thread.join(PATIENCE)
        self.assertTrue(self.node.done.is_set())


if __name__ == "__main__":
    unittest.main()
