"""A service that a node serves: calls of policy none, each run at most once by a worker thread."""

import contextvars
import logging
import queue
import threading
import time

from thrift.Thrift import TMessageType
from thrift.transport.TTransport import TMemoryBuffer

from . import layout, volatile, wire
from .errors import Error, FormatError
from .protocol import protocol_of

log = logging.getLogger("bifrost")

serving: "contextvars.ContextVar[Incoming | None]" = contextvars.ContextVar("serving", default=None)  # by this thread, or task


class Incoming:
    """A call that is being served. headers are the call's, answer_headers those of the answer; caller is the address of the calling node, which the switch vouches for;
    deadline is in the seconds of time.monotonic, None for none; canceled is set when the caller has given up."""

    def __init__(self, message, caller, entry, deadline):
        self.message, self.caller, self.entry, self.deadline = message, caller, entry, deadline
        self.canceled = threading.Event()
        self.headers, self.answer_headers = {}, {}
        self.claim = 0  # bytes that a large message counts for
        self.hands = ()  # regions that its answer hands over


def current() -> "Incoming | None":
    """The call that this thread, or task of asyncio, is serving; None outside of handlers."""
    return serving.get()


# What a call or one-way may be marked as.
_MARKS = layout.FLAG_MORE | layout.FLAG_HEADERS | layout.FLAG_TAINTED | 3


NOT_HANDED_OVER = "the answer names a region that its node may not hand over"
GIVEN_UP = "its caller has given the call up before it began"


class Calls:
    """The calls of policy none that a node has got, and the services that they are for. received is the pump's;
    the other methods may be called concurrently."""

    def __init__(self, node):
        self._node, self._services = node, {}  # by hash
        self._volatile = volatile.Volatile(node.incarnation)
        self._lock = threading.Lock()  # over all of these
        self._idle = threading.Condition(self._lock)
        self._open, self._closing = 0, False  # calls queued or running; new ones are refused

    def add(self, service):
        """Has calls to a service served."""
        with self._lock:
            if service.hash in self._services:
                raise Error(layout.BAD_REQUEST, "exported already", "export " + service.name)
            self._services[service.hash] = service

    def remove(self, service):
        """Has calls to a service served no more."""
        with self._lock:
            del self._services[service.hash]

    def serves(self):
        """Whether there are services."""
        with self._lock:
            return bool(self._services)

    def drain(self, end):
        """Refuses new calls, and waits until none is queued or running, but not beyond end."""
        with self._idle:
            self._closing = True
            self._idle.wait_for(lambda: self._open == 0, max(0.0, end - time.monotonic()))

    def close(self):
        """Ends the services; calls that have not begun are dropped."""
        with self._lock:
            services = list(self._services.values())
        for s in services:
            s.close()

    def received(self, m, size, source):
        """Takes a call or one-way of so many bytes. FormatError if it is none."""
        node = self._node
        if not _plausible(m):
            raise FormatError("type %d, flags %#x: no call of policy none" % (m.type, m.flags))
        now, call = time.monotonic(), None
        with self._lock:
            service = self._services.get(m.service)
            if service is None:
                node.counters["stale"] += 1  # it does not serve it yet: the caller sends it again
                return
            verdict, entry, abandoned = self._volatile.receive(now, source, m)
            if abandoned:
                abandoned.tag.canceled.set()
            if verdict == volatile.RUN:
                entry.tag = call = Incoming(m, source, entry, now + m.timeout / 1000 if m.timeout else None)
                self._open += 1
            reply, closing = entry.reply if verdict == volatile.ANSWER else None, self._closing
        if abandoned:
            node.give_up((source, abandoned.tag.message.call, False))
        if call is not None:
            self._take(service, call, size, closing)
        elif reply is not None:
            node.send(reply, source)
        else:
            self._refuse(m, source, verdict)

    def asked(self, m, source):
        """Takes a question what has become of a call, of its caller's later incarnation or of the Gatekeeper in its name."""
        with self._lock:
            verdict, entry = self._volatile.ask(source, m)
            reply = entry.reply if verdict == volatile.ANSWER else None
        if reply is not None:
            self._node.send(reply, source)
        else:
            self._refuse(m, source, verdict)

    def _refuse(self, m, source, verdict):
        """Answers a call, or a question about it, with why it does not run, or counts it."""
        if verdict in _REFUSALS:
            why, unbegun = _REFUSALS[verdict]
            self._node.send(self._node.exception(m, layout.UNAVAILABLE, why, unbegun), source)
        else:
            self._node.counters[_COUNTERS.get(verdict, "malformed")] += 1

    def _take(self, service, call, size, closing):
        """Takes a new call."""
        m = call.message
        if closing and m.type == layout.TYPE_CALL:
            self.end(call, self._node.exception(m, layout.UNAVAILABLE, "the node is closing", True))
        elif closing:
            self.forget(call)  # its caller sends it again
        elif m.flags & layout.FLAG_MORE:
            self._fetch(service, call, size)
        else:
            service.accept(call)

    def _fetch(self, service, call, size):
        """Begins to fetch the rest of a call of which so many bytes have come."""
        m = call.message
        try:
            total = wire.opening(m)[0]
        except FormatError:
            self.forget(call)
            raise
        if total > self._node.max_message:
            self.end(call, self._node.exception(m, layout.BAD_REQUEST, self._node.too_long("a message", total), True))
        elif not self._node.fetch(call.caller, m, False, size, _Rest(self, service, call)):
            self._node.counters["full"] += 1
            self.forget(call)  # its caller sends it again

    def body(self, source, id):
        """The whole payload of a large answer that is kept, b"" if there is none."""
        with self._lock:
            entry = self._volatile.find(source, id)
            return entry.body if entry is not None else b""

    def owes(self):
        """Whether callers have not got all of large answers yet."""
        with self._lock:
            return self._volatile.owes()

    def hands(self):
        """The regions that the answers to known calls hand over: some answers may not have passed the switch yet."""
        with self._lock:
            return [r for entry in self._volatile.calls() if entry.tag for r in entry.tag.hands]

    def settle(self, source, id):
        """Forgets a large answer that its caller has."""
        with self._lock:
            entry = self._volatile.find(source, id)
            if entry is not None:
                self._volatile.settle(entry)

    def answer(self, call, reply):
        """Keeps the answer to a call that goes on running."""
        with self._lock:
            self._volatile.answer(call.entry, reply)

    def forget(self, call):
        """Undoes the arrival of a call: it is new when it comes again."""
        self._node.release(call.caller, call.claim)
        with self._idle:
            self._volatile.forget(call.entry)
            self._open -= 1
            self._idle.notify_all()

    def end(self, call, reply, body=b""):
        """Answers a call and keeps the answer, whose whole payload is body if it exceeds a packet."""
        self._node.release(call.caller, call.claim)
        with self._lock:
            self._volatile.finish(call.entry, reply, body)
        self._node.memory.account.left(call.hands)  # Calls.hands has them now
        if reply is not None:
            self._node.send(reply, call.caller)
        with self._idle:
            self._open -= 1
            self._idle.notify_all()


def _plausible(m):
    """Whether a message can be a call of policy none. FormatError if it does not say who waits for it."""
    marks = _MARKS | (layout.FLAG_GIVEN_UP if m.type == layout.TYPE_CALL else 0)
    if m.type not in (layout.TYPE_CALL, layout.TYPE_ONE_WAY) or m.policy != layout.POLICY_NONE or m.flags & ~marks or m.attempt:
        return False
    return bool(m.flags & layout.FLAG_GIVEN_UP) or wire.lineage(m) is not None


# Why calls are refused, and whether they have never begun.
_REFUSALS = {
    volatile.GONE: ("the node has been restarted since, the call may have run before", False),
    volatile.LOST: ("the call has run, its answer is no longer kept", False),
    volatile.REFUSED: (GIVEN_UP, True),
    volatile.UNBEGUN: ("the call has not come", True),
}
_COUNTERS = {volatile.FULL: "full", volatile.DUPLICATE: "duplicates", volatile.LATE: "duplicates"}


class Service:
    """One exported service."""

    def __init__(self, node, calls, name, processor, workers, limit):
        self._node, self._calls, self.name, self._processor = node, calls, name, processor
        self.hash = wire.service_hash(name)
        self._queue = queue.Queue(limit)
        self._workers = [threading.Thread(target=self._work, name="bifrost %s" % name, daemon=True) for _ in range(workers)]
        for w in self._workers:
            w.start()

    def close(self):
        """Ends the service; calls that have not begun are dropped."""
        while True:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                break
        for _ in self._workers:
            self._queue.put(None)

    def accept(self, call):
        """Takes a call that has come whole."""
        m, account = call.message, self._node.memory.account
        receipt = None
        if m.type == layout.TYPE_ONE_WAY:
            account.add(m.regions)
            receipt = self._receipt(call)
        try:
            self._queue.put_nowait(call)
        except queue.Full:
            if receipt:
                account.drop(m.regions)
                self._calls.forget(call)  # its caller sends it again
            else:
                self._calls.end(call, self._node.exception(m, layout.OVERLOADED, "all workers are busy and the queue is full", True))
            return
        if receipt:
            self._node.send(receipt, call.caller)

    def _receipt(self, call):
        """What tells the sender of a one-way that it need not be sent again."""
        answer = self._node.answer_header(call.message)
        answer.flags |= layout.FLAG_DONE
        b = answer.pack()
        self._calls.answer(call, b)
        return b

    def _work(self):
        while True:
            call = self._queue.get()
            if call is None:
                return
            reply, body = None, b""
            try:
                reply, body = self._serve(call)
            except Exception as e:  # whatever a handler or a processor lets through
                log.exception("%s: a handler has failed", self.name)
                reply = self._node.exception(call.message, layout.APPLICATION, repr(e))
            if call.message.type == layout.TYPE_ONE_WAY:
                reply, body = None, b""
            self._calls.end(call, reply, body)

    def _serve(self, call):
        """Runs the processor; returns the answer and, if that is only a first packet, its whole payload."""
        m, node = call.message, self._node
        if call.deadline is not None and time.monotonic() >= call.deadline:
            return node.exception(m, layout.DEADLINE_EXCEEDED, "the deadline passed before the handler began", True), b""
        if call.canceled.is_set() and m.type == layout.TYPE_CALL:
            return node.exception(m, layout.UNAVAILABLE, GIVEN_UP, True), b""
        serving.set(call)
        try:
            call.headers, message = wire.take_headers(m)
            protocol = protocol_of(message)
            out = protocol(TMemoryBuffer())
            read = protocol(TMemoryBuffer(message))
            read.listed = m.regions
            self._processor.process(read, out)
            front = wire.pack_headers(call.answer_headers) if call.answer_headers else b""
            if out.regions:
                node.memory.settle()
            if not all(node.memory.account.owns(r) or m.lent_by(r) != wire.NO_USE for r in out.regions):
                return node.exception(m, layout.PERMISSION_DENIED, NOT_HANDED_OVER), b""
        except Error as e:
            return node.exception(m, e.code, e.reason), b""
        except ValueError as e:  # headers that do not parse, or are too long
            return node.exception(m, layout.BAD_REQUEST, str(e)), b""
        finally:
            serving.set(None)
        answer = node.answer_header(m)
        answer.type = layout.TYPE_EXCEPTION if out.kind == TMessageType.EXCEPTION else layout.TYPE_REPLY
        answer.payload = front + out.trans.getvalue()
        answer.code = layout.DECLARED if out.declared else layout.OK
        answer.flags |= layout.FLAG_HEADERS if front else 0
        try:
            answer.regions = out.regions
            b = answer.pack()
        except ValueError as e:
            return node.exception(m, layout.BAD_REQUEST, str(e)), b""
        body = b""
        if len(b) > node.budget:
            if len(answer.payload) > node.max_message:
                return node.exception(m, layout.BAD_REQUEST, node.too_long("an answer", len(answer.payload))), b""
            body = wire.first(answer, node.budget)
            b = answer.pack()
        call.hands = out.regions
        node.memory.account.leave(out.regions)
        return b, body


class _Rest:
    """What becomes of a large call when its parts have come, or do not come."""

    def __init__(self, calls, service, call):
        self._calls, self._service, self._call = calls, service, call

    def whole(self, body):
        self._call.message.payload, self._call.claim = body, len(body)
        self._call.message.flags &= ~layout.FLAG_MORE
        self._service.accept(self._call)

    def lost(self):
        self._calls.forget(self._call)
