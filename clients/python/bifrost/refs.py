"""Values by reference: what an IDL marks with (bifrost.ref).

    from feed import Feed, feed_bifrost  # which "thrift --gen py feed.thrift" and "bifrost gen --python feed.thrift" have made

    feed = bifrost.refs.client(Feed.Client, feed_bifrost.MARKS["Feed"])(node.client("Feed", timeout=10))
    with feed.timeline() as posts:  # reads in place, and frees the list at the end
        for post in posts[500:510]:
            print(post.number, post.text)

Thrift's compiler for Python drops annotations, so "bifrost gen --python" says what is marked: for each method its arguments by their names, and
"return" for its result. Marks may be written by hand, too: {"timeline": ["return"]}.
"""

from __future__ import annotations

import contextlib
import inspect
import ipaddress
import itertools
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from thrift.protocol.TBase import TBase
from thrift.Thrift import TApplicationException, TMessageType, TType
from thrift.transport.TTransport import TTransportException

from . import form, layout, learned, wire
from .errors import Error
from .leases import Given
from .node import Node
from .service import current
from .ttypes import GlobalPointer, Lease, Reference

BESIDE = 512  # bytes of a packet that are left for what stands beside a value

log = logging.getLogger("bifrost")

Marks = Mapping[str, Iterable[str]]


class Mark(str):
    """What an IDL marks with (bifrost.ref): an argument, by its name, or "return".

    named says that the value is a list whose elements have a name in the IDL, an enum's or a typedef's of numbers: it has a header in
    memory. way is what the IDL says of how the value travels: "region" puts it into memory always, "value" keeps one that is not there
    inside messages, up to what they may have (max_message of bifrost.join). Without it a value goes inside a packet that has room for it."""

    named: bool
    way: str

    def __new__(cls, name: str, named: bool = False, way: str = "") -> Mark:
        if way not in ("", "region", "value"):
            raise Error(layout.BAD_REQUEST, "%s: the way is %r instead of region or value" % (name, way), "marks")
        mark = super().__new__(cls, name)
        mark.named, mark.way = named, way
        return mark

    def room(self, node: Node, parts: bool = False) -> int:
        """How many bytes of a value travel inside a message of a node's, which may go in parts."""
        if self.way == "region":
            return 0
        most = node.max_message if self.way else learned.PARTS + BESIDE if parts else node.budget
        return min(node.max_message, most) - BESIDE


class Ref:
    """A value by reference: in the rack's memory, or inside the message that it came or goes in.

    Whoever gets a result owns it, and frees it: by free, or by `with`, which is for what open returns. What a handler is lent ends
    when the handler returns. What has ended fails with Error BAD_REQUEST. One thread at a time may free or pass a reference; any may
    read it."""

    def __init__(self, node: Node, kind: form.Kind, plain: bool, content: bytes | None, pointer: bytes = b"", length: int = 0, lent: bool = False) -> None:
        self._node, self._kind, self._plain, self._lent, self._ended = node, kind, plain, lent, False
        self._content, self._pointer = content, pointer
        self._by = wire.NO_USE  # the standing lease by which it is read
        self._given: list[Given] = []  # the standing leases that are given of it
        self.size = length if content is None else len(content)  # bytes
        self._passed = False  # inside a message
        self._seen = self._onwards = 0  # bytes of it that were read; what those spare whom it was lent on to (bifrost.learned)

    def open(self) -> Any:
        """What reads parts of the value when they are asked for: see bifrost.form.open."""
        return form.open(self._kind, self.size, self._read, self._plain)

    def load(self) -> Any:
        """Reads the whole value."""
        return form.decode(self._kind, self._read(0, self.size), self._plain)

    def free(self) -> None:
        """Ends the reference, and gives its memory back. BAD_REQUEST: it is lent, so its caller frees it, or it has ended."""
        if self._lent:
            raise Error(layout.BAD_REQUEST, "the reference is lent: its caller frees it", "free reference")
        self._use("free reference")
        if self._by != wire.NO_USE:
            self._node.memory.borrows.drop(wire.region_of(self._pointer), self._by)
        elif self._pointer:
            self._node.memory.free(self._pointer)
        self._end()

    def share(self, reader: str, timeout: float | None = None) -> Lease:
        """Lets the node at an address read the value for longer than a call: until unshare, until this node ends, or until the reader is gone for good. Pass the
        result to the reader, which borrows by it; the struct is that of bifrost.thrift. While it is shared, the value can neither be written nor freed:
        PERMISSION_DENIED. It may be passed to calls, and shared with others. What is lent, or another node's, fails as BAD_REQUEST; NOT_FOUND: there is
        no such node; NO_SPACE: the owner's user has its share of the rack's leases. After DEADLINE_EXCEEDED there is none in the end."""
        self._use("share")
        if self._lent or self._by != wire.NO_USE:
            raise Error(layout.BAD_REQUEST, "the reference is lent, or another node's: only a program's own values are shared", "share")
        try:
            reader = str(ipaddress.IPv6Address(reader))
        except ValueError as e:
            raise Error(layout.BAD_REQUEST, str(e), "share") from e
        if reader == str(ipaddress.IPv6Address(self._node.address)):
            raise Error(layout.BAD_REQUEST, "node %s would share with itself: it reads what is its own" % reader, "share")
        self._stored()
        if not self._pointer:
            return Lease(0, b"")
        self._node.memory.settle()
        given = Given(self._node, self._pointer, self.size, reader)
        given.wait(timeout)
        self._given.append(given)
        return given.handle

    def unshare(self, *leases: Lease, timeout: float | None = None) -> None:
        """Takes leases back, or all that were given if none is named. It returns when nobody reads by them any more, a second later at least: calls of the
        reader that have passed the value on end first. After DEADLINE_EXCEEDED that goes on, and another unshare waits for it. UNAVAILABLE: the node has ended, which
        ends all its leases."""
        ends = [g for g in self._given if not leases or g.handle in leases]
        for given in ends:
            given.end()
        end = None if timeout is None else time.monotonic() + timeout
        for given in ends:
            given.wait_over(None if end is None else max(0.0, end - time.monotonic()))
        self._given = [g for g in self._given if g not in ends]

    def __enter__(self) -> Any:
        try:
            return self.open()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if not self._lent and not self._ended:
            self.free()

    def _use(self, op):
        if self._ended:
            raise Error(layout.BAD_REQUEST, "the reference has ended: its call is over, or it was freed or handed over", op)

    def _read(self, at, size):
        self._use("read reference")
        self._seen += size
        if self._content is not None:
            return self._content[at : at + size]
        return self._node.memory.read(wire.add(self._pointer, at), size) if size else b""

    def _end(self):
        self._ended, self._content = True, None

    def _spares(self):
        """What a region of a handler's argument would spare, or would have."""
        whole = self._seen >= self.size - self.size // 8  # all but the index, of a list
        return self._onwards + (learned.NOTHING if whole else learned.TRANSFER)

    def _stored(self):
        """A Ref to the value that has it in memory: this one, unless it is lent."""
        self._use("pass reference")
        if not self._content:
            return self
        stored = _keep(self._node, self._kind, self._plain, iter((self._content,)), 0)
        if self._lent:
            return stored
        self._content, self._pointer = None, stored._pointer
        return self

    def _wire(self):
        """What a message carries."""
        self._use("pass reference")
        if self._content:
            self._passed = True
            return Reference(GlobalPointer(b""), self.size, self._content)
        return Reference(GlobalPointer(self._pointer), self.size)


def put(node: Node, kind: form.Kind, value: Any, plain: bool | None = None) -> Ref:
    """A reference to a value of a type (bifrost.form.kind_of), for any number of calls. A value that does not fit a packet is put into
    memory, as it comes: it may be an iterator, of pairs for a map, and is never held as a whole. If it raises, nothing is left.
    plain says that the value has no header; the default is what the type says."""
    plain = form.is_plain(kind) if plain is None else plain
    return _keep(node, kind, plain, form.pieces(kind, value, plain), Mark("").room(node))


def borrow(node: Node, kind: form.Kind, lease: Lease, plain: bool | None = None) -> Ref:
    """A reference to a value of a type (bifrost.form.kind_of) that another node shares with this one. It may be read, and passed to calls, until the
    lease ends: then that fails as PERMISSION_DENIED. free forgets it here, and leaves the value to its owner. plain is as in put. BAD_REQUEST: it is no
    lease, or the value is this node's own."""
    plain = form.is_plain(kind) if plain is None else plain
    length, p, by = lease.length or 0, bytes(lease.address or b""), wire.Use(lease.slot or 0, lease.number or 0)
    if not length and not p:
        return Ref(node, kind, plain, b"")
    slots = layout.BLOCKS * layout.BLOCK_SLOTS
    if not (wire.is_stored(p) and p[4] == node.prefix and 1 <= length <= layout.MAX_REGION and 1 <= by.slot < slots and by.number >= 1):
        raise Error(layout.BAD_REQUEST, "it is no lease: %d bytes at %s, slot %d, number %d" % (length, p.hex(), *by), "borrow")
    region = wire.region_of(p)
    if node.memory.account.owns(region):
        raise Error(layout.BAD_REQUEST, "%s is this node's own" % p.hex(), "borrow")
    ref = Ref(node, kind, plain, None, p, length)
    ref._by = by
    node.memory.borrows.add(region, by)
    return ref


def _keep(node, kind, plain, pieces, inside):
    """The Ref for content in pieces: up to so many bytes inside messages, else in memory. When its region is full, one of twice the size
    takes its place."""
    first, size = [], 0
    while size <= inside or not first:
        piece = next(pieces, None)
        if piece is None:
            return Ref(node, kind, plain, b"".join(first))
        first.append(piece)
        size += len(piece)
    if not size:
        return Ref(node, kind, plain, b"")
    memory, pointer, room, at = node.memory, b"", 0, 0
    try:
        for piece in itertools.chain(first, pieces):
            if at + len(piece) > room:
                room = max(at + len(piece), min(2 * room, layout.MAX_REGION))
                pointer = _moved(memory, pointer, at, room)
            memory.write(wire.add(pointer, at), piece)
            at += len(piece)
    except BaseException:
        if pointer:
            _free(memory, pointer)
        raise
    return Ref(node, kind, plain, None, pointer, at)


def _moved(memory, pointer, length, room):
    """A region of room bytes with what stands at the beginning of another one, which is freed."""
    larger = memory.alloc(room)
    try:
        for at in range(0, length, form.RUN):
            memory.write(wire.add(larger, at), memory.read(wire.add(pointer, at), min(form.RUN, length - at)))
        if pointer:
            memory.free(pointer)
    except BaseException:
        _free(memory, larger)
        raise
    return larger


def _free(memory, pointer):
    """Frees what a failure leaves behind. The failure tells more than one of this; the region goes with the node at the latest."""
    with contextlib.suppress(Error):
        memory.free(pointer)


def _arrived(node, kind, plain, w, op, lent):
    """The Ref for what a message carries."""
    if w is None or w.length is None:
        raise Error(layout.BAD_REQUEST, "the message carries no reference", op)
    pointer = bytes(w.pointer.address or b"") if w.pointer else b""
    if pointer == wire.NO_ID:
        pointer = b""
    if w.value is not None:
        if pointer or not w.length or len(w.value) != w.length:
            raise Error(layout.BAD_REQUEST, "a value of %d bytes, a length of %d and the pointer %s" % (len(w.value), w.length, pointer.hex()), op)
        return Ref(node, kind, plain, w.value, lent=lent)
    if not 0 <= w.length <= layout.MAX_REGION or (w.length == 0) != (not pointer) or pointer and not wire.is_stored(pointer):
        raise Error(layout.BAD_REQUEST, "a reference of %d bytes at %r" % (w.length, pointer.hex()), op)
    return Ref(node, kind, plain, None, pointer, w.length, lent)


_TOLD = "told beside"  # a name that no field of an IDL has


class _Spec(tuple):
    """A thrift_spec whose last field has another number than its place says."""

    def __getitem__(self, number):
        last = super().__getitem__(-1)
        if number == last[0]:
            return last
        if number == len(self) - 1:
            raise IndexError
        return super().__getitem__(number)


class _Method:
    """A method of which arguments or the result are marked."""

    def __init__(self, owner, process, name, marks):
        for cls in owner.__mro__:  # a method that a service inherits is in another module
            if process + name in vars(cls):
                module = sys.modules[cls.__module__]
                break
        else:
            raise Error(layout.BAD_REQUEST, "%s has no method %s" % (owner.__qualname__, name), "marks")
        self.name, self.arguments = name, getattr(module, name + "_args")
        self.names = list(inspect.signature(self.arguments).parameters)  # of the arguments, as the handler takes them
        self.result = getattr(module, name + "_result", None)  # None: one-way
        self.marked, self.ways = {}, {}  # by field: its type, and whether it is plain; its mark
        for mark in (m if isinstance(m, Mark) else Mark(m) for m in marks):
            try:
                kind = form.kind_of(self.result or type(None), "success") if mark == "return" else form.kind_of(self.arguments, mark)
            except AttributeError:
                raise Error(layout.BAD_REQUEST, "%s has no %s" % (name, mark), "marks") from None
            self.marked[str(mark)], self.ways[str(mark)] = (kind, form.is_plain(kind) and not mark.named), mark
        self.refs = [n for n in self.names if n in self.marked]
        self.wire_arguments = self._with_references(self.arguments, {m: m for m in self.marked if m != "return"})
        self.wire_result = self.result and self._with_references(self.result, {"success": "return"})

    def _with_references(self, cls, marks):
        """The generated struct with References for what is marked, and a field for what the other side is told beside."""
        fields = ((f[0], TType.STRUCT, f[2], [Reference, Reference.thrift_spec], None) if f and marks.get(f[2]) in self.marked else f for f in cls.thrift_spec)
        spec = _Spec((*fields, (wire.TELLS, TType.I64, _TOLD, None, None)))
        return type(cls.__name__, (TBase,), {"thrift_spec": spec, **{f[2]: None for f in spec if f}})

    def call(self, protocol, args, kwargs):
        """Makes the call, as a generated client does."""
        node, given, sent, own = protocol._node, self.arguments(*args, **kwargs), self.wire_arguments(), []
        parts = self.result is not None and node.policy(protocol._service, self.name + wire.REF_SUFFIX, protocol._policy) == layout.POLICY_NONE
        if "return" in self.marked and node.max_message < (learned.PARTS + BESIDE if parts else node.budget):
            setattr(sent, _TOLD, node.max_message)
        refs = {}
        try:
            for f in filter(None, self.arguments.thrift_spec):
                value = getattr(given, f[2])
                if f[2] in self.marked and value is not None:
                    refs[f[2]] = ref = self._lent(node, protocol._service, f[2], value, parts)
                    if ref is not value:
                        own.append(ref)
                    if self.result is None and isinstance(value, Ref):  # a one-way carries references away
                        own.append(value)
                    value = ref._wire()
                setattr(sent, f[2], value)
            try:
                self._send(protocol, sent)
            except Error as e:
                if not (e.code == layout.BAD_REQUEST and e.remote and e.never_began and any(r._content for r in refs.values())):
                    raise
                for name, ref in refs.items():  # its callee takes less: once more, with the values in memory
                    stored = ref._stored()
                    if stored is not ref:
                        own.append(stored)
                    setattr(sent, name, stored._wire())
                self._send(protocol, sent)
            if self.result is None:
                for ref in own:
                    ref._end()
                return None
            return self._answer(protocol, node)
        finally:
            for ref in own:
                ref.__exit__()

    def _send(self, protocol, sent):
        protocol.writeMessageBegin(self.name + wire.REF_SUFFIX, TMessageType.CALL if self.result else TMessageType.ONEWAY, 0)
        sent.write(protocol)
        protocol.writeMessageEnd()
        protocol.trans.flush()

    def _lent(self, node, service, field, value, parts):
        """The Ref for an argument: its value is in memory, unless it travels inside the call, which may go in parts."""
        mark, argument = self.ways[field], (service, self.name, field)
        room = mark.room(node, parts and not isinstance(value, Iterator))  # an iterator is written as it comes
        if parts and not mark.way:
            room = min(room, learned.below(node.learned.believed(argument), isinstance(value, Ref) and value._passed) - 1)
        if not isinstance(value, Ref):
            kind, plain = self.marked[field]
            return _keep(node, kind, plain, form.pieces(kind, value, plain), room)
        value._onwards += node.learned.last(argument)
        return value._stored() if value._content and value.size > room else value

    def _back(self, node, takes, held):
        """How many bytes of a result travel inside an answer to a caller that takes so many, if that is not 0. held: it is in this program's memory."""
        serving = current()
        # A caller that is an execution may be an exactly-once one, which journals the answer.
        room = self.ways["return"].room(node, held and serving is not None and serving.message.parent == wire.NO_ID)
        return min(room, takes - BESIDE) if takes else room

    def _answer(self, protocol, node):
        _, kind, _ = protocol.readMessageBegin()
        if kind == TMessageType.EXCEPTION:
            failure = TApplicationException()
            failure.read(protocol)
            protocol.readMessageEnd()
            raise failure
        result = self.wire_result()
        result.read(protocol)
        protocol.readMessageEnd()
        for name, spares in zip(self.refs, learned.unpack(getattr(result, _TOLD) or 0, len(self.refs))):
            node.learned.note((protocol._service, self.name, name), spares)
        for f in self.result.thrift_spec:
            if f and f[0] and getattr(result, f[2]) is not None:
                raise getattr(result, f[2])
        if "return" in self.marked:
            return _arrived(node, *self.marked["return"], result.success, "result of " + self.name, False)
        if self._returns() and result.success is None:
            raise TApplicationException(TApplicationException.MISSING_RESULT, "%s failed: unknown result" % self.name)
        return result.success if self._returns() else None

    def _returns(self):
        return bool(self.result.thrift_spec) and self.result.thrift_spec[0] is not None

    def serve(self, node, handler, sequence, protocol, out):
        """Runs the handler for a call by reference, as a generated processor does for one by value."""
        given = self.wire_arguments()
        given.read(protocol)
        protocol.readMessageEnd()
        lent = self.result is not None
        args = (
            _arrived(node, *self.marked[name], getattr(given, name), "argument " + name, lent) if name in self.marked else getattr(given, name)
            for name in self.names
        )
        if not lent:
            return self.run(handler, args, lambda value: value)
        result, kind = self.wire_result(), TMessageType.REPLY
        try:
            takes = getattr(given, _TOLD) or 0
            value, uses = self.run(handler, args, lambda value: self._handed(node, value, takes) if "return" in self.marked else value)
            if self._returns():
                result.success = value
            setattr(result, _TOLD, learned.pack(uses) or None)
        except TTransportException:
            raise
        except TApplicationException as e:
            result, kind = e, TMessageType.EXCEPTION
        except form.Malformed as e:  # an argument
            raise Error(layout.BAD_REQUEST, str(e), self.name) from e
        except Exception as e:
            declared = [f[2] for f in self.result.thrift_spec if f and f[0] and isinstance(e, f[3][0])]
            if declared:
                setattr(result, declared[0], e)
            else:
                log.exception("%s: a handler has failed", self.name)
                result, kind = TApplicationException(TApplicationException.INTERNAL_ERROR, "Internal error"), TMessageType.EXCEPTION
        out.writeMessageBegin(self.name + wire.REF_SUFFIX, kind, sequence)
        result.write(out)
        out.writeMessageEnd()
        out.trans.flush()

    def run(self, handler, coming, finish):
        """Runs the handler, and finish on its result. The handler's arguments end then. Returns what finish makes, and what regions of the arguments by
        reference would spare."""
        args = []
        try:
            for a in coming:
                args.append(a)
            value = finish(getattr(handler, self.name)(*args))
            return value, [a._spares() for name, a in zip(self.names, args) if name in self.marked]
        finally:
            for ref in args:
                if isinstance(ref, Ref):
                    ref.__exit__()
                    ref._end()

    def _handed(self, node, value, takes):
        """The Reference to a handler's result. What the handler was lent, or has a lease for, is copied, for it is not the handler's to hand over."""
        kind, plain = self.marked["return"]
        if value is None:
            raise TApplicationException(TApplicationException.MISSING_RESULT, "%s returned nothing" % self.name)
        if not isinstance(value, Ref):
            value = _keep(node, kind, plain, form.pieces(kind, value, plain), self._back(node, takes, not isinstance(value, Iterator)))
        elif value._lent or value._by != wire.NO_USE:
            value = _keep(node, kind, plain, iter((value._read(0, value.size),)), self._back(node, takes, True))
        elif value._content and value.size > self._back(node, takes, True):
            value = value._stored()
        w = value._wire()
        value._end()
        return w


class _ByValue:
    """A handler for calls by value, of one that takes and returns references."""

    def __init__(self, node, handler, methods):
        self._node, self._handler, self._methods = node, handler, methods

    def __getattr__(self, name):
        method = self._methods.get(name)
        if method is None:
            return getattr(self._handler, name)

        def run(*args):
            marks = map(method.marked.get, method.names)
            coming = (Ref(self._node, *mark, form.encode(mark[0], a, mark[1])) if mark else a for a, mark in zip(args, marks))
            return method.run(self._handler, coming, finish)[0]

        def finish(value):
            if "return" not in method.marked:
                return value
            if isinstance(value, Ref):
                try:
                    return value.load()
                finally:
                    value.__exit__()
            return _whole(method.marked["return"][0], value)

        return run


def _whole(kind, value):
    """The value that generated code takes for one that may be an iterator."""
    make = {TType.LIST: list, TType.SET: set, TType.MAP: dict}.get(kind[0])
    return make(value) if make and isinstance(value, Iterator) else value


def client(make: type, marks: Marks) -> Any:
    """The class of a generated client, with marked methods that call by reference. A marked argument is a value, or an iterator as in put,
    or a Ref; a marked result is a Ref. What is passed as a value is freed when the call is over."""
    methods = {name: _Method(make, "send_", name, some) for name, some in marks.items()}

    def calling(method):
        return lambda self, *args, **kwargs: method.call(self._oprot, args, kwargs)

    return type(make.__name__, (make,), {name: calling(m) for name, m in methods.items()})


def processor(make: type, handler: Any, node: Node, marks: Marks) -> Any:
    """A generated processor, for node.export, that serves marked methods by reference, and by value those who know nothing of references.
    The handler gets a Ref for each marked argument, which ends when it returns. For a marked result it returns a value, an iterator
    as in put, or a Ref, which is then the caller's."""
    methods = {name: _Method(make, "process_", name, some) for name, some in marks.items()}
    made = make(_ByValue(node, handler, methods))  # type: ignore[call-arg]

    def serving(method):
        return lambda _, sequence, protocol, out: method.serve(node, handler, sequence, protocol, out)

    made._processMap.update({name + wire.REF_SUFFIX: serving(m) for name, m in methods.items()})
    return made
