"""Packets and the calling side, without a network."""

import unittest

from bifrost import endpoint, layout, wire
from bifrost.errors import FormatError


def call_message(**fields):
    return wire.Message(type=layout.TYPE_CALL, **fields)


class WireTest(unittest.TestCase):
    def test_there_and_back(self):
        for n in range(17):
            regions = [wire.region_of(wire.make_pointer(16, n % 3, 64 + i, (1 << 22) - 1)) for i in range(n)]
            m = call_message(payload=b"pay", trailer=b"trail", regions=regions, turned=2, had=5, method=wire.method_of("a" * 17))
            got = wire.Message.parse(m.pack())
            self.assertEqual((got.payload, got.trailer, got.regions, got.method, got.turned, got.had), (b"pay", b"trail", regions, m.method, 2, 5))
        self.assertRaisesRegex(ValueError, "put the pointers into a region", call_message, regions=list(range(1, 18)))
        self.assertEqual(wire.Memory.parse(wire.Memory(request=7, data=b"x").pack()).data, b"x")

    def test_lists(self):
        """What came in one slot shares a list with nothing that came in another one; what is the sender's own goes wherever there is room."""
        a, b = wire.Use(64, 7), wire.Use(65, 7)
        by = {1: a, 2: a, 3: b}.get
        use = lambda r: by(r, wire.NO_USE)  # noqa: E731
        self.assertEqual(wire.lists_of([9, 1, 3, 2, 9, 1], use), [(a, [1, 2, 9]), (b, [3])])
        self.assertEqual(wire.lists_of([1, 10, 11, 12, 13], use), [(a, [1, 10, 11, 12]), (wire.NO_USE, [13])])
        self.assertEqual(wire.lists_of([5, 6, 7, 8, 9, 1], use), [(a, [1, 5, 6, 7]), (wire.NO_USE, [8, 9])])
        self.assertRaisesRegex(ValueError, "that more than 4 calls have lent", wire.lists_of, range(1, 6), lambda r: wire.Use(r, 1))
        m = call_message(listed=wire.lists_of([9, 1, 3], use), slot=80, number=5)
        got = wire.Message.parse(m.pack())
        self.assertEqual(got.listed, [(a, [1, 9]), (b, [3])])
        self.assertEqual([got.lent_by(r) for r in (1, 9, 3, 4)], [wire.Use(80, 5), wire.Use(80, 5), wire.Use(81, 5), wire.NO_USE])
        got.type = layout.TYPE_ONE_WAY
        self.assertEqual(got.lent_by(1), wire.NO_USE)  # it is its own

    def test_bad_packets(self):
        whole = call_message(payload=b"pay", regions=[wire.region_of(wire.make_pointer(16, 1, 64, 1))]).pack()

        def changed(at, value):
            return whole[:at] + bytes((value,)) + whole[at + 1 :]

        bad = [changed(*c) for c in ((0, 0), (2, 2), (78, 0), (94, 5), (95, 1), (114, 0), (132, 5), (133, 1), (136, 1), (151, 1))]
        for b in [whole[:n] for n in range(len(whole))] + [whole + b"x"] + bad:
            self.assertRaises(FormatError, wire.Message.parse, b)
        self.assertRaises(FormatError, wire.Message.parse, call_message(reserved=1).pack())
        self.assertRaisesRegex(FormatError, "listed twice|twice", wire.Message.parse, call_message(listed=[(wire.NO_USE, [5, 5])]).pack())
        self.assertRaisesRegex(FormatError, "version 2 .want 3", wire.Message.parse, changed(2, 2))
        memory = wire.Memory(request=1).pack()
        self.assertRaises(FormatError, wire.Memory.parse, memory[:-1])
        self.assertRaises(FormatError, wire.Memory.parse, memory[:6] + b"\0" + memory[7:])

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

    def test_lineage(self):
        for waits in b"", bytes(range(32)), bytes(wire.MAX_LINEAGE):
            self.assertEqual(wire.lineage(call_message(trailer=waits)), waits)
        for trailer in bytes(1), bytes(17), bytes(24), bytes(wire.MAX_LINEAGE + 16):
            self.assertRaises(FormatError, wire.lineage, call_message(trailer=trailer))

    def test_refusals(self):
        refusal = dict(type=layout.TYPE_EXCEPTION, code=layout.UNAVAILABLE, callee_incarnation=7, flags=layout.FLAG_UNBEGUN)
        self.assertTrue(wire.Message(**refusal).refuses)
        for change in dict(type=layout.TYPE_REPLY), dict(code=layout.OVERLOADED), dict(flags=0):
            self.assertFalse(wire.Message(**dict(refusal, **change)).refuses)

    def test_arguments(self):
        p, q = 1, 2
        calls = [dict(payload=b"a"), dict(payload=b"b"), dict(payload=b"a", service=1), dict(payload=b"a", method=b"m" * 16), dict(payload=b"a", regions=[p]), dict(payload=b"a", regions=[q])]
        self.assertEqual(len({wire.arguments(call_message(**c)) for c in calls}), len(calls))
        self.assertEqual(wire.arguments(call_message(payload=b"a", number=7)), wire.arguments(call_message(payload=b"a")))

    def test_plain_ids(self):
        number = wire.number_of(3, 7)
        id = wire.plain_id("fd00::1:2", 0x11, number)
        self.assertEqual(id.hex(), "00010002" + "00000011" + "0000003000000007")
        self.assertEqual((wire.slot_in(id), wire.derived(id)), (0x11, False))
        self.assertTrue(wire.derived(bytes(8) + b"\x80" + bytes(7)))
        self.assertFalse(wire.derived(wire.plain_id("::1", 16, wire.number_of((1 << 27) - 1, (1 << 36) - 1))))

    def test_forgets(self):
        calls = [wire.plain_id("fd00::5", n, wire.number_of(3, n)) for n in range(100)]
        got = [wire.Message.parse(b) for b in wire.forgets(calls, 4, 1232)]
        flags = layout.FLAG_SETTLED | layout.POLICY_RECOVER
        self.assertTrue(all(len(m.pack()) <= 1232 and m.flags == flags and m.caller_incarnation == 4 for m in got))
        items = b"".join(id + n.to_bytes(4, "big") + wire.number_of(3, n).to_bytes(8, "big") for n, id in enumerate(calls))
        self.assertEqual(b"".join(m.payload for m in got), items)
        self.assertEqual(wire.forgotten(wire.Message(payload=b"".join(calls))), calls)
        self.assertRaises(FormatError, wire.forgotten, wire.Message(payload=bytes(17)))


class CallerTest(unittest.TestCase):
    def setUp(self):
        self.caller = endpoint.Caller("fd00::5", 3, None)
        self.caller.slots.grant([4, 9])

    def begin(self, now=0.0, node="a", **options):
        call = endpoint.Call(wire.Message(type=layout.TYPE_CALL, flags=options.pop("flags", 0)), endpoint.RTT(), node, **options)
        self.assertTrue(self.caller.slots.take(call))
        self.caller.begin(now, call)
        return call

    def reply(self, call, flags=0, **fields):
        m = wire.Message(type=layout.TYPE_REPLY, flags=flags, call=call.message.call, slot=call.message.slot, number=call.message.number)
        for name, value in fields.items():
            setattr(m, name, value)
        return m

    def test_names(self):
        first, second = self.begin(), self.begin()
        for n, m in enumerate((first.message, second.message)):
            self.assertEqual((m.slot, m.number), (64 + n, wire.number_of(3, 1)))
            self.assertEqual(m.call, wire.plain_id("fd00::5", m.slot, m.number))
        self.caller.end(second)
        m = self.begin().message
        self.assertEqual((m.slot, m.number), (65, wire.number_of(3, 2)))

    def test_sent_until_answered(self):
        call = self.begin()
        self.assertEqual(self.caller.tick(0.01), ([], []))
        self.assertEqual(self.caller.tick(0.021)[0], [call])
        self.assertEqual(wire.Message.parse(call.again(0.021)).attempt, 0)
        self.assertIs(self.caller.receive(0.03, "a", self.reply(call)), call)
        self.assertIsNone(self.caller.receive(0.03, "a", self.reply(call)))
        after = self.begin()
        self.assertEqual((after.message.slot, after.message.number), (call.message.slot, call.message.number + 1))

    def test_answers_come_from_their_node(self):
        for policy in layout.POLICY_NONE, layout.POLICY_RECOVER:
            call = self.begin(flags=policy, node="a")
            self.assertIsNone(self.caller.receive(0.0, "b", self.reply(call)))
            self.assertIs(self.caller.receive(0.0, "a", self.reply(call)), call)

    def answer(self, now, node):
        call = self.begin(now, flags=layout.POLICY_RECOVER, node=node)
        self.caller.receive(now, node, self.reply(call))
        return call.message.call

    def test_nodes_are_told_what_to_forget(self):
        self.answer(0.0, "a")
        last = self.answer(0.1, "a")  # tells it of the first one
        self.assertEqual(self.caller.left(0.2), [])
        self.answer(0.2, "b")
        self.assertEqual(self.caller.left(0.2), [("a", last)])
        out = self.begin(0.3, flags=layout.POLICY_RECOVER, node="b")
        self.assertEqual(self.caller.left(9.0), [])  # its slot is not idle
        self.caller.end(out)
        self.assertEqual(self.caller.due(), 0.3 + layout.FORGET_AFTER)
        self.assertEqual(self.caller.left(0.3 + layout.FORGET_AFTER), [("b", out.message.call)])
        self.assertIsNone(self.caller.due())
        self.begin(2.0, node="b")
        self.begin(2.0)
        self.assertEqual(self.caller.left(9.0), [])

    def test_no_node_keeps_calls_of_policy_none(self):
        kept = self.answer(0.0, "a")
        call = self.begin(0.1, node="a")
        self.assertEqual(self.caller.left(0.1), [("a", kept)])
        self.caller.receive(0.1, "a", self.reply(call))
        self.assertIsNone(self.caller.due())

    def test_a_slot_is_open_until_its_call_is_answered(self):
        """An answer in another slot or under another number is none, and a one-way that expires goes on."""
        call = self.begin(expires=0.5)
        self.assertEqual(self.caller.tick(0.5), ([], [call]))
        self.assertEqual(self.caller.tick(0.6), ([call], []))
        for other in dict(slot=call.message.slot + 1), dict(number=call.message.number - 1):
            self.assertIsNone(self.caller.receive(0.6, "a", self.reply(call, **other)))
        self.assertIs(self.caller.receive(0.6, "a", self.reply(call)), call)

    def test_turned_around(self):
        call, now = self.begin(), 0.0
        m, times = wire.Message.parse(call.again(0.0)), []
        m.turned = layout.TURNED_LENT
        while call.lent < endpoint.MAX_LENT_PAUSE:
            self.assertEqual(self.caller.turned(now, "a", m), (call, False))
            times.append(call.due - now)
            now = call.due
            self.assertEqual(self.caller.tick(now)[0], [call])
            self.assertFalse(call.resent)
            self.assertEqual(call.due, now + call.rtt.timeout)
        self.assertEqual((times[0], times[-1]), (endpoint.LENT_PAUSE, endpoint.MAX_LENT_PAUSE))
        m.turned = layout.TURNED_DENIED
        self.assertEqual(self.caller.turned(now, "b", m), (None, False))
        for other in dict(slot=m.slot + 1), dict(number=m.number - 1), dict(type=layout.TYPE_ASK):
            wrong = wire.Message.parse(m.pack())
            for name, value in other.items():
                setattr(wrong, name, value)
            self.assertEqual(self.caller.turned(now, "a", wrong), (None, False))
        self.assertEqual(self.caller.turned(now, "a", m), (call, True))
        self.assertEqual(self.caller.turned(now, "a", m), (None, False))

    def test_restarted(self):
        first, other = self.begin(node="a"), self.begin(node="b")
        while first.interval < 0.25:
            now = first.due
            self.caller.tick(now)
        now += 0.1
        self.caller.restarted(now, "a")
        self.assertEqual(self.caller.tick(now)[0], [first])
        self.caller.restarted(now + 0.001, "a")
        self.assertEqual(first.due, now + layout.MIN_TIMEOUT)
        self.assertLess(first.interval, 0.25)
        self.assertGreater(other.due, now + 0.1)


if __name__ == "__main__":
    unittest.main()
