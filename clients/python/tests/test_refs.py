"""Calls by reference between a client and a service of rpc/gen/internal/lab, over memory and messages of the test's."""

import asyncio
import logging
import pathlib
import runpy
import shutil
import struct
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock

from thrift.Thrift import TApplicationException, TType
from thrift.transport.TTransport import TMemoryBuffer

from bifrost import aio, form, layout, refs, wire
from bifrost import service as service_module
from bifrost.errors import Error
from bifrost.learned import Learned
from bifrost.protocol import ClientProtocol, protocol_of
from bifrost.ttypes import GlobalPointer, Reference

GEN = pathlib.Path(__file__).resolve().parents[3] / "rpc/gen"
IDL = GEN / "internal/lab/lab.thrift", GEN / "testdata/python/marks-of-lists.thrift"
# What "bifrost gen --python" makes of them.
MARKS = runpy.run_path(str(GEN / "testdata/python/lab_bifrost.py"))["MARKS"]
LISTS = runpy.run_path(str(GEN / "testdata/python/marks_of_lists_bifrost.py"))["MARKS"]["Lists"]


def setUpModule():
    if not shutil.which("thrift"):
        raise unittest.SkipTest("NOT CHECKED: no thrift on PATH: apt-get install thrift-compiler")
    place = tempfile.mkdtemp()
    unittest.addModuleCleanup(shutil.rmtree, place)
    for idl in IDL:
        subprocess.run(["thrift", "-nowarn", "-r", "--gen", "py", "-out", place, str(idl)], check=True)
    sys.path.insert(0, place)
    unittest.addModuleCleanup(sys.path.remove, place)
    global Forced, Lab, Lists, lab, marks, shared
    from labtest.marks import Lists
    from labtest.marks import ttypes as marks

    from lab import Forced, Lab
    from lab import ttypes as lab
    from shared import ttypes as shared


class Memory:
    """Regions that are the test's, and how much is read of them."""

    def __init__(self):
        self.regions, self.made, self.reads, self.fails = {}, 0, [], None

    def alloc(self, size):
        if not 1 <= size <= layout.MAX_REGION:
            raise Error(layout.BAD_REQUEST, op="alloc")
        self.made += 1
        p = wire.make_pointer(16, 1, 64 + self.made, 1)
        self.regions[wire.region_of(p)] = bytearray(size)
        return p

    def _region(self, pointer):
        if wire.region_of(pointer) not in self.regions:
            raise Error(layout.PERMISSION_DENIED, op="memory")
        return self.regions[wire.region_of(pointer)], wire.offset(pointer)

    def read(self, pointer, length):
        region, at = self._region(pointer)
        if at + length > len(region):
            raise Error(layout.BAD_REQUEST, op="read")
        self.reads.append(length)
        return bytes(region[at : at + length])

    def write(self, pointer, data):
        region, at = self._region(pointer)
        if self.fails and len(region) >= self.fails:
            raise Error(layout.UNAVAILABLE, op="write")
        assert at + len(data) <= len(region)
        region[at : at + len(data)] = data

    def free(self, pointer):
        self._region(pointer)
        del self.regions[wire.region_of(pointer)]


class Node:
    """Calls its own service. edit may change a message."""

    budget, max_message = 1400, layout.MAX_MESSAGE

    def __init__(self, handler, processor=None, marks=None):
        self.memory, self.names, self.learned = Memory(), [], Learned()
        self.sizes, self.most, self.handled = [], layout.MAX_MESSAGE, types.SimpleNamespace(message=wire.Message())
        self.processor = refs.processor(processor or Lab.Processor, handler, self, marks or MARKS["Lab"])
        self.edit = lambda payload: payload

    def client(self, service, policy, timeout):
        return ClientProtocol(self, service, policy, timeout)

    def close(self):
        pass

    def policy(self, service, method, wanted):
        return layout.POLICY_NONE if wanted == "none" else layout.POLICY_RECOVER

    def exchange(self, service, name, payload, regions, oneway, policy, timeout, headers):
        self.names.append(name)
        self.sizes.append(len(payload))
        if len(payload) > self.most:
            raise Error(layout.BAD_REQUEST, "too long", remote=True, never_began=True)
        protocol = protocol_of(payload)
        out, read = protocol(TMemoryBuffer()), protocol(TMemoryBuffer(self.edit(payload)))
        read.listed = regions
        token = service_module.serving.set(self.handled)
        self.processor.process(read, out)
        service_module.serving.reset(token)
        return {}, b"" if oneway else self.edit(out.trans.getvalue()), out.regions


class Handler:
    def __init__(self):
        self.kept = []

    def develop(self, raw, contrast):
        if contrast < 0:
            raise lab.Corrupt(contrast)
        if contrast == 1:
            raise shared.Broken("broken")
        if contrast == 2:
            return raw
        if contrast == 3:
            return None
        if contrast == 99:
            return self.borrowed
        self.kept.append(raw)
        return bytes(b ^ contrast for b in raw.open())

    def histogram(self, raw):
        return (raw.open()[i] for i in range(raw.size))

    def show(self, title):
        return lab.Print(title)

    def scale_frame(self, frame, by):
        frame = frame.open()
        return shared.Frame(int(frame.width * by), int(frame.height * by), frame.planes.load())

    def new_curve(self, points):
        for i in range(points):
            if i == 500000:
                raise lab.Corrupt(i)
            yield i / 2

    def colour(self, sheet):
        return sheet.open().colour

    def burn(self, raw):
        if not raw.size:
            raise lab.Corrupt(7)

    def archive(self, raw, name):
        self.kept.append((raw.load(), name))

    def album(self, prints, colours):
        colours, titles = colours.load(), {}
        for p in prints.open():
            if p.colour in colours:
                titles.setdefault(p.title, []).append(p.load())
        return iter(titles.items())

    def count(self, film):
        return film.size

    def greet(self, name, picture):
        return name + str(picture.width)


class RefsTest(unittest.TestCase):
    def setUp(self):
        logging.disable()  # of handlers that fail as they should
        self.addCleanup(logging.disable, logging.NOTSET)
        self.handler = Handler()
        self.node = Node(self.handler)
        self.protocol = ClientProtocol(self.node, "Lab", None, None)
        self.client, self.plain = refs.client(Lab.Client, MARKS["Lab"])(self.protocol), Lab.Client(self.protocol)
        self.memory = self.node.memory

    def code(self, call, *args):
        with self.assertRaises(Error) as caught:
            call(*args)
        return caught.exception.code

    def both(self, method, *args):
        """What a method returns by reference and by value. No memory is left."""
        by_reference = getattr(self.client, method)(*args)
        value = getattr(self.plain, method)(*args)
        self.assertEqual(self.node.names[-2:], [method + ".ref", method])
        if isinstance(by_reference, refs.Ref):
            by_reference, ref = by_reference.load(), by_reference
            ref.free()
        self.assertEqual(by_reference, value)
        self.assertEqual(self.memory.regions, {})
        return value

    def test_parts(self):
        """A value that is held goes in parts in calls of policy none which are no one-ways, up to 16 MiB; others, and what is written as it comes, stand in memory. So it
        is with results, unless an execution may keep them."""
        self.client = refs.client(Lab.Client, MARKS["Lab"])(ClientProtocol(self.node, "Lab", "none", None))
        raw = b"x" * 100000

        def made(f, *args):
            before = self.memory.made
            got = f(*args)
            if isinstance(got, refs.Ref):
                got.free()
            self.assertEqual(self.memory.regions, {})
            return self.memory.made - before

        self.assertEqual(made(self.client.develop, raw, 2), 0)
        self.assertEqual(made(self.client.count, b"x" * (16 << 20)), 0)
        self.assertEqual(made(self.client.count, b"x" * ((16 << 20) + 1)), 1)
        self.assertEqual(made(self.client.archive, raw, "name"), 1)
        self.assertGreater(made(self.client.new_curve, 100000), 0)  # an iterator
        self.node.handled.message.parent = b"p" * 16
        self.assertEqual(made(self.client.develop, raw, 2), 1)
        self.node.handled.message.parent = wire.NO_ID
        recovers = refs.client(Lab.Client, MARKS["Lab"])(ClientProtocol(self.node, "Lab", "recover", None))
        self.assertEqual(made(recovers.count, raw), 1)

    def test_learns(self):
        """Two answers in a row say how the next values travel."""
        client = refs.client(Lab.Client, MARKS["Lab"])(ClientProtocol(self.node, "Lab", "none", None))
        four, half = b"x" * (4 << 20), b"x" * (512 << 10)

        def stored(method, value, *args):
            before = self.memory.made
            getattr(client, method)(value, *args)
            return self.memory.made - before

        self.assertEqual([stored("count", four) for _ in range(3)], [0, 0, 1])  # count reads nothing
        self.assertEqual(stored("count", four[1:]), 0)
        ref = refs.Ref(self.node, (TType.STRING, "BINARY"), True, half)
        self.assertEqual([stored("count", ref) for _ in range(3)], [0, 1, 0])
        ref.free()
        self.node.learned.note(("Lab", "count", "film"), 3)
        self.assertEqual((stored("count", half), stored("count", half[1:])), (0, 0))
        self.node.learned.note(("Lab", "count", "film"), 3)
        self.node.learned.note(("Lab", "count", "film"), 3)
        self.assertEqual((stored("count", half[1:]), stored("count", half)), (0, 1))
        self.assertEqual(self.memory.regions, {})

    def test_tells_what_it_passes_on(self):
        """What those spare whom a handler lends its argument on to counts, too; what it reads all of does not."""
        told = []
        self.node.learned.note = lambda argument, spares: told.append((argument[1], spares))
        client = refs.client(Lab.Client, MARKS["Lab"])(ClientProtocol(self.node, "Lab", "none", None))
        self.handler.count = lambda film: client.develop(film, 5).size if film.size > 5 else len(film.load())
        client.count(b"short")
        client.count(b"longer")
        self.assertEqual(told, [("count", -1), ("develop", -1), ("count", 1)])
        self.node.learned._seen[("Lab", "develop", "raw")] = (3, 3, 7)
        told.clear()
        client.count(b"longer")
        self.assertEqual(told[-1], ("count", 9))

    def test_takes_less(self):
        """Who takes less gets the value through memory, and its answer."""
        self.node.most = 5000
        for policy in "none", "recover":
            client = refs.client(Lab.Client, MARKS["Lab"])(ClientProtocol(self.node, "Lab", policy, None))
            self.node.sizes.clear()
            with client.develop(b"x" * 10000, 2) as b:
                self.assertEqual(len(b), 10000)
            self.assertEqual(len(self.node.sizes), 2 if policy == "none" else 1)
            self.assertLess(self.node.sizes[-1], 5000)
            self.assertEqual(self.memory.regions, {})
        self.node.most = layout.MAX_MESSAGE
        with unittest.mock.patch.object(self.node, "max_message", 5000):
            client = refs.client(Lab.Client, MARKS["Lab"])(ClientProtocol(self.node, "Lab", "none", None))
            result = client.develop(b"x" * 4400, 2)
            self.assertEqual((result._pointer, result.load()), (b"", b"x" * 4400))
            read = []
            self.handler.develop = lambda raw, contrast: read.append(raw.load()) or b"y" * 4600
            result = client.develop(b"x", 2)
            self.assertNotEqual(result._pointer, b"")
            result.free()

    def test_returns_what_is_borrowed(self):
        """It is copied, for its owner hands it over to nobody."""
        borrowed = self.handler.borrowed = refs.put(self.node, (TType.STRING, "BINARY"), b"x" * 5000)
        borrowed._by = wire.Use(80, 7)
        with self.client.develop(b"raw", 99) as b:
            self.assertEqual((b.load(), len(self.memory.regions)), (b"x" * 5000, 1))
        self.assertEqual(borrowed.load(), b"x" * 5000)

    def test_calls(self):
        for size in 0, 1, 5000, 300000:
            raw = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
            self.assertEqual(self.both("develop", raw, 5), bytes(b ^ 5 for b in raw))
            self.assertEqual(self.both("develop", raw, 2), raw)
            self.assertEqual(self.both("histogram", raw), list(raw))
            self.assertEqual(self.both("count", raw), size)
            frame = shared.Frame(2, 4, [raw])
            self.assertEqual(self.both("scale_frame", frame, 0.5), shared.Frame(1, 2, [raw]))
        self.assertEqual(self.both("show", "title"), lab.Print("title"))
        self.assertEqual(self.both("colour", lab.Print(colour=2)), 2)
        self.assertEqual(self.both("new_curve", 3), [0.0, 0.5, 1.0])
        self.assertIsNone(self.both("burn", b"x"))
        self.assertEqual(self.client.greet("a", shared.Frame(1, 2)), "a1")
        prints = [lab.Print("title %d" % (i % 9), i % 3, shared.Frame(i, i)) for i in range(1000)]
        album = self.both("album", prints, {1, 2})
        self.assertEqual(sum(map(len, album.values())), sum(p.colour > 0 for p in prints))

    def test_exceptions(self):
        for client in self.client, self.plain:
            for args, error in ((b"x" * 5000, -7), lab.Corrupt), ((b"", 1), shared.Broken):
                with self.assertRaises(error):
                    client.develop(*args)
            for args in (b"x", 3), (b"x", None):
                with self.assertRaises(TApplicationException):
                    client.develop(*args)
            with self.assertRaises(lab.Corrupt) as caught:
                client.burn(raw=b"")
            self.assertEqual(caught.exception.offset, 7)
        self.assertEqual(self.memory.regions, {})

    def test_references_are_passed_on(self):
        raw = b"x" * 5000
        ref = refs.put(self.node, form.kind_of(Lab.develop_args, "raw"), raw)
        made = self.memory.made
        self.assertEqual([self.client.count(ref), self.client.count(ref)], [5000, 5000])
        self.assertEqual(self.memory.made, made)
        with self.client.develop(ref, 4) as developed:
            self.assertEqual((developed[0], developed[-2:], len(developed)), (ord("x") ^ 4, b"||", 5000))
        self.assertEqual(self.code(developed.load), layout.BAD_REQUEST)
        self.assertEqual(self.code(self.handler.kept[0].load), layout.BAD_REQUEST)  # it was lent
        self.assertIsNone(self.client.archive(ref, "a"))
        self.assertEqual(self.handler.kept[-1], (raw, "a"))
        for use in ref.load, ref.free, lambda: self.client.count(ref), lambda: ref.open()[0]:
            self.assertEqual(self.code(use), layout.BAD_REQUEST)
        self.plain.archive(b"y", "b")
        self.assertEqual(self.handler.kept[-1], (b"y", "b"))
        kind, kept = form.kind_of(Lab.develop_result, "success"), self.handler.kept
        self.handler.develop = lambda raw, contrast: kept.append(refs.put(self.node, kind, raw.load())) or kept[-1]
        with self.client.develop(raw, 4) as developed:
            self.assertEqual((developed.load(), self.code(kept[-1].load)), (raw, layout.BAD_REQUEST))  # it is the caller's now
        self.handler.count = lambda film: film.free()
        self.assertEqual(self.code(self.client.count, b"x" * 5000), layout.BAD_REQUEST)
        self.assertEqual(self.memory.regions, {})

    def test_reads_little(self):
        """Ten of a thousand posts of 10 KiB: the bytes that are read of the caller's list."""
        kind = form.kind_of(Lab.album_args, "prints")
        prints = (lab.Print("title %d" % i, 1, shared.Frame(i, 2, [bytes(10 << 10)])) for i in range(1000))
        with refs.put(self.node, kind, prints) as view:
            self.memory.reads.clear()
            self.assertEqual([p.frame.width for p in view[500:510]], list(range(500, 510)))
            self.assertLess(sum(self.memory.reads), 150 << 10)
            self.assertLess(len(self.memory.reads), 30)
        self.assertEqual(self.memory.regions, {})

    def test_writes_as_it_comes(self):
        """What is written is never held as a whole; what raises half-way leaves nothing."""
        kind, longest = form.kind_of(Lab.new_curve_result, "success"), 0

        def numbers(n):
            nonlocal longest
            for i in range(n):
                longest = max(longest, i * 8 - sum(map(len, self.memory.regions.values())))
                yield float(i)
        with refs.put(self.node, kind, numbers(300000)) as view:
            self.assertEqual((len(view), view[299999], view[-2:].load()), (300000, 299999.0, [299998.0, 299999.0]))
        self.assertLess(longest, 300 << 10)
        with self.assertRaises(lab.Corrupt):
            refs.put(self.node, kind, Handler().new_curve(600000))
        with self.assertRaises(struct.error):
            refs.put(self.node, form.kind_of(Lab.album_args, "prints"), (lab.Print("x" * 1000) if i < 1000 else lab.Print(colour=[]) for i in range(2000)))
        with self.assertRaises(TApplicationException):  # the IDL does not declare it
            self.client.new_curve(600000)
        for self.memory.fails in 1, 500 << 10:
            self.assertEqual(self.code(refs.put, self.node, kind, numbers(300000)), layout.UNAVAILABLE)
        self.assertEqual(self.memory.regions, {})

    def test_grows_to_the_largest_region(self):
        """A value that is longer than half of the largest region fits one."""
        kind = form.kind_of(Lab.new_curve_result, "success")
        with unittest.mock.patch.object(layout, "MAX_REGION", 3 * form.PIECE):
            with refs.put(self.node, kind, (float(i) for i in range(3 * form.PIECE // 8))) as view:
                self.assertEqual(view[-1], 3 * form.PIECE // 8 - 1)
            self.assertEqual(self.code(refs.put, self.node, kind, (float(i) for i in range(3 * form.PIECE // 8 + 1))), layout.BAD_REQUEST)
        self.assertEqual(self.memory.regions, {})

    def test_asyncio(self):
        async def main():
            async with aio.Node(lambda: self.node, 2) as node:
                lab = node.client(refs.client(Lab.Client, MARKS["Lab"]), "Lab")
                curve = await lab.new_curve(1000)
                return await node.run(curve.load), await node.run(curve.free)

        self.assertEqual(asyncio.run(main()), ([i / 2 for i in range(1000)], None))
        self.assertEqual(self.memory.regions, {})

    def test_marks(self):
        for marks in {"nothing": ["return"]}, {"develop": ["nothing"]}, {"burn": ["return"]}, {"archive": ["return"]}:
            self.assertEqual(self.code(refs.client, Lab.Client, marks), layout.BAD_REQUEST)
        with self.assertRaises(Error):
            refs.Mark("raw", way="memory")

    def test_named_lists(self):
        """Lists whose elements have a name in the IDL have a header, all others of numbers have none: in arguments and results, and inherited."""
        red, green, seen = marks.Colour.RED, marks.Colour.GREEN, []

        class Handler:
            def colours(self, shades, palette):
                seen.extend((shades.size, palette.size))
                return shades.load() + palette.load()

            def numbers(self, bare, named, accounts):
                seen.extend((bare.size, named.size, accounts.size))
                return (n + 1 for n in bare.load() + named.load())

            def accounts(self, n):
                return iter([1 << 40] * n)

        node = Node(Handler(), Lists.Processor, LISTS)
        protocol = ClientProtocol(node, "Lists", None, None)
        by_reference, by_value = refs.client(Lists.Client, LISTS)(protocol), Lists.Client(protocol)
        headed = lambda t, values: len(form.encode((TType.LIST, (t, None, False)), values))
        for call, want, size in (
            (lambda c: c.colours([red], [green, red]), [1, 2, 1], headed(TType.I32, [1, 2, 1])),
            (lambda c: c.numbers([1], [2, 3], [4]), [2, 3, 4], 12),
            (lambda c: c.accounts(3), [1 << 40] * 3, headed(TType.I64, [1] * 3)),
        ):
            ref = call(by_reference)
            self.assertEqual((ref.load(), ref.open()[1:].load(), ref.size, call(by_value)), (want, want[1:], size, want))
            ref.free()
        by_hand = headed(TType.I32, [1]), headed(TType.I32, [1, 2]), 4, 8, headed(TType.I64, [1])
        self.assertEqual(tuple(seen[:2] + seen[4:7]), by_hand)
        self.assertEqual(node.memory.regions, {})

    def test_ways(self):
        """The IDL says how a value travels, whatever its size: what a call has put into memory, and what its answer has."""
        there, back = [], []

        class Handler:
            def out_of_region(self, raw):
                there.append(bool(raw._pointer))
                return raw if raw.size == 3000 else raw.load()

            out_of_message = out_of_region

        node = Node(Handler(), Forced.Processor, MARKS["Forced"])
        client = refs.client(Forced.Client, MARKS["Forced"])(ClientProtocol(node, "Forced", None, None))
        for size in 0, 1, 3000, 100000, 3 << 20:
            raw = b"x" * size
            for way, call in enumerate((client.out_of_message, client.out_of_region)):
                made = refs.put(node, form.kind_of(Forced.out_of_region_args, "raw"), raw)
                inside = not made._pointer
                for passed in raw, made, made:
                    there.clear()
                    result = call(passed)
                    stored = bool(size) and (bool(way) or passed is made and not inside)
                    self.assertEqual((there, bool(result._pointer)), ([stored], bool(size) and not way), (size, way))
                    self.assertEqual(result.load(), raw)
                    result.free()
                made.free()
                self.assertEqual(node.memory.regions, {})
        node.max_message = 5000  # a longer value has to stand in memory
        there.clear()
        result = client.out_of_message(b"x" * 5000)
        self.assertEqual((there, result.load()), ([True], b"x" * 5000))
        result.free()
        self.assertEqual(node.memory.regions, {})

    def test_lent_on_by_region(self):
        """What came inside a message, and is passed on where the IDL wants a region, is put into memory for that call."""
        seen = []

        class Handler:
            def out_of_region(self, raw):
                seen.append(bool(raw._pointer))
                return raw.load()

            def out_of_message(self, raw):
                seen.append(bool(raw._pointer))
                return client.out_of_region(raw)

        node = Node(Handler(), Forced.Processor, MARKS["Forced"])
        client = refs.client(Forced.Client, MARKS["Forced"])(ClientProtocol(node, "Forced", None, None))
        with client.out_of_message(b"abc") as got:
            self.assertEqual((got.load(), seen), (b"abc", [False, True]))
        self.assertEqual(node.memory.regions, {})

    def test_hostile_references(self):
        p = self.memory.alloc(64)
        stored = Reference(GlobalPointer(p), 65)
        kind = (TType.STRING, "BINARY")
        for w in (
            None, Reference(), Reference(length=1), Reference(GlobalPointer(p), 0), Reference(GlobalPointer(p), -1), Reference(GlobalPointer(p), layout.MAX_REGION + 1),
            Reference(GlobalPointer(b"short"), 5), Reference(GlobalPointer(p), 1, b"x"), Reference(length=2, value=b"x"), Reference(length=0, value=b""),
        ):
            self.assertEqual(self.code(refs._arrived, self.node, kind, True, w, "result", False), layout.BAD_REQUEST, w)
        ref = refs._arrived(self.node, kind, True, stored, "result", False)
        self.assertEqual((ref.open()[:64], self.code(ref.load)), (bytes(64), layout.BAD_REQUEST))  # the region is shorter
        self.assertEqual(refs._arrived(self.node, kind, True, Reference(GlobalPointer(bytes(16)), 0), "result", False).load(), b"")

    def test_hostile_content(self):
        """A handler is not run to its end by content that does not parse; the caller is told why."""
        for size in 100, 5000:
            bad = refs.put(self.node, (TType.STRING, "BINARY"), b"x" * size)
            bad._kind, bad._plain = form.kind_of(Lab.scale_frame_args, "frame"), False
            with self.assertRaisesRegex(Error, "no header at byte 0"):
                self.client.scale_frame(bad, 2.0)
            with self.assertRaises(form.Malformed), bad:
                self.fail("it opens")
            self.assertEqual(self.memory.regions, {})


if __name__ == "__main__":
    unittest.main()
