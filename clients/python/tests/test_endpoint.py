"""The protocol of calls, without a network."""

import unittest

from bifrost import endpoint, layout, wire
from bifrost.errors import FormatError


def call_message(session=1, sequence=1, floor=1, **fields):
    return wire.Message(type=layout.TYPE_CALL, flags=layout.FLAG_SESSION, call=wire.session_id(session, sequence), floor=floor, **fields)


class WireTest(unittest.TestCase):
    def test_there_and_back(self):
        p, q = wire.make_pointer(16, 1, 64), wire.make_pointer(16, 2, 128)
        m = call_message(payload=b"pay", trailer=b"trail", pointers=[p, q], method=wire.method_of("a" * 17))
        got = wire.Message.parse(m.pack())
        self.assertEqual((got.payload, got.trailer, got.pointers, got.method), (b"pay", b"trail", [p, q], m.method))
        self.assertEqual(wire.Memory.parse(wire.Memory(request=7, data=b"x").pack()).data, b"x")

    def test_bad_packets(self):
        whole = call_message(payload=b"pay", pointers=[wire.make_pointer(16, 1, 64)]).pack()
        for b in [whole[:n] for n in range(len(whole))] + [whole + b"x", b"\0" + whole[1:], whole[:112] + b"\1" + whole[113:]]:
            self.assertRaises(FormatError, wire.Message.parse, b)
        self.assertRaises(FormatError, wire.Memory.parse, bytes(80))

    def test_headers(self):
        headers = {"traceparent": "00-1", "name": "Bifröst", "empty": ""}
        m = call_message(payload=wire.pack_headers(headers) + b"message")
        self.assertEqual(wire.take_headers(m), ({}, m.payload))
        m.flags |= layout.FLAG_HEADERS
        self.assertEqual(wire.take_headers(m), (headers, b"message"))
        for payload in b"", b"\0", b"\0\5abc", b"\0\4\0\0\0\0":
            m.payload = payload
            self.assertRaises(FormatError, wire.take_headers, m)
        for bad in {"": "v"}, {"k": "v" * layout.MAX_HEADER_BYTES}, {str(n): "" for n in range(65)}:
            self.assertRaises(ValueError, wire.pack_headers, bad)

    def test_parts(self):
        self.assertEqual(wire.crc32c(b"123456789"), 0xE3069283)
        whole = call_message(payload=bytes(range(256)) * 20).pack()
        parts = [wire.Message.parse(b) for b in wire.split(whole, 1232)]
        self.assertEqual(b"".join(p.payload[12:] for p in parts), whole[94:])
        self.assertTrue(all(p.flags & layout.FLAG_PART and p.call == wire.session_id(1, 1) for p in parts))


class CallerTest(unittest.TestCase):
    def test_sessions_are_the_nodes_own(self):
        sessions = {self.begin().message.session for _ in range(10)}
        self.assertEqual((len(sessions), {s >> 32 for s in sessions}), (10, {5}))

    def setUp(self):
        self.caller = endpoint.Caller("fd00::5", iter(range(1, 100)).__next__)

    def begin(self, now=0.0, **options):
        call = endpoint.Call(wire.Message(type=layout.TYPE_CALL, flags=options.pop("flags", 0)), endpoint.RTT(), **options)
        self.caller.begin(now, call)
        return call

    def reply(self, call, flags=layout.FLAG_SESSION, **fields):
        return wire.Message(type=layout.TYPE_REPLY, flags=flags, call=call.message.call, **fields)

    def test_sent_until_answered(self):
        call = self.begin()
        self.assertEqual(self.caller.tick(0.01), ([], [], []))
        self.assertEqual(self.caller.tick(0.021)[0], [call])
        self.assertEqual(wire.Message.parse(call.again(0.021)).attempt, 3)
        self.assertIs(self.caller.receive(0.03, self.reply(call)), call)
        self.assertIsNone(self.caller.receive(0.03, self.reply(call)))
        after = self.begin()
        self.assertEqual((after.message.session, after.message.sequence), (call.message.session, call.message.sequence + 1))

    def test_exact_answers_are_released(self):
        call = self.begin(flags=layout.FLAG_HELD | layout.POLICY_RECOVER, held=True)
        self.assertIsNone(self.caller.receive(0.0, self.reply(call)))
        self.assertIs(self.caller.receive(0.0, self.reply(call, layout.FLAG_SESSION | layout.FLAG_RELEASED)), call)
        settle = (call.message.session, call.message.sequence + 1)
        self.assertEqual(self.caller.tick(layout.SETTLE_AFTER)[2], [settle])
        ack = wire.Message(type=layout.TYPE_ACK, flags=layout.FLAG_RELEASED, call=wire.session_id(settle[0], 0), floor=settle[1])
        self.caller.receive(1.0, ack)
        self.assertIsNone(self.caller.due())


class CalleeTest(unittest.TestCase):
    def setUp(self):
        self.callee = endpoint.Callee(7)

    def receive(self, m, now=1.0, source="a"):
        return self.callee.receive(now, 0.5, source, m)

    def test_at_most_once(self):
        verdict, entry, _ = self.receive(call_message())
        self.assertEqual(verdict, endpoint.RUN)
        self.assertEqual(self.receive(call_message())[0], endpoint.DROP)
        self.callee.finish(entry, b"reply")
        self.assertEqual(self.receive(call_message())[:2], (endpoint.RESEND, entry))
        self.assertEqual(self.receive(call_message(), source="b")[0], endpoint.RUN)
        self.assertEqual(self.receive(call_message(sequence=2, floor=2))[0], endpoint.RUN)
        self.assertEqual(self.receive(call_message())[0], endpoint.DROP)

    def test_given_up(self):
        entry = self.receive(call_message())[1]
        self.assertEqual(self.receive(call_message(floor=2)), (endpoint.DROP, None, [entry]))
        self.callee.finish(entry, b"nobody wants it")
        self.assertEqual(self.receive(call_message())[0], endpoint.DROP)

    def test_refused(self):
        self.assertEqual(self.receive(call_message(callee_incarnation=6))[0], endpoint.GONE)
        self.assertEqual(self.receive(call_message(attempt=100))[0], endpoint.GONE)
        self.assertEqual(self.receive(call_message(floor=3))[0], endpoint.DROP)
        small = endpoint.Callee(7, window=1, reply_bytes=5)
        first = small.receive(1, 0, "a", call_message(sequence=5))[1]
        self.assertEqual(small.receive(1, 0, "a", call_message(sequence=6))[0], endpoint.FULL)
        small.finish(first, b"12345")
        other = small.receive(1, 0, "b", call_message())[1]
        small.finish(other, b"12345")
        self.assertEqual(small.receive(1, 0, "a", call_message(sequence=5))[0], endpoint.LOST)

    def test_silent_sessions_are_forgotten(self):
        entry = self.receive(call_message())[1]
        self.callee.finish(entry, b"reply")
        self.assertEqual(self.receive(call_message(session=2), now=1000.0)[0], endpoint.RUN)
        self.assertTrue(entry.gone)


if __name__ == "__main__":
    unittest.main()
