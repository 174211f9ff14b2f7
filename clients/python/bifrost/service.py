"""A service that a node serves: calls of policy none, each run at most once by a worker thread."""

import logging
import queue
import threading
import time

from thrift.Thrift import TMessageType
from thrift.transport.TTransport import TMemoryBuffer

from . import endpoint, layout, wire
from .errors import Error, FormatError
from .protocol import protocol_of

log = logging.getLogger("bifrost")

_current = threading.local()


class Incoming:
    """A call that is being served. headers are the call's, answer_headers those of the answer; caller is the address of the calling node, which the switch vouches for;
    deadline is in the seconds of time.monotonic, None for none; canceled is set when the caller has given up."""

    def __init__(self, message, caller, entry, deadline):
        self.message, self.caller, self.entry, self.deadline = message, caller, entry, deadline
        self.canceled = threading.Event()
        self.headers, self.answer_headers = {}, {}
        self.claim = 0  # bytes that a large message counts for


def current():
    """The call that this thread is serving, None outside of handlers."""
    return getattr(_current, "call", None)


class Service:
    """One exported service."""

    def __init__(self, node, name, processor, workers, limit):
        self._node, self.name, self._processor = node, name, processor
        self.address, self._hash = wire.service_address(name), wire.service_hash(name)
        self.socket, self._since = None, 0.0
        self._callee = endpoint.Callee(node.incarnation)
        self._lock = threading.Lock()  # over _callee
        self._queue = queue.Queue(limit)
        self._open = 0  # calls queued or running; guarded by _lock
        self._idle = threading.Condition(self._lock)
        self._workers = [threading.Thread(target=self._work, name="bifrost %s" % name, daemon=True) for _ in range(workers)]

    def open(self, sock, now):
        """Begins to serve what the socket receives."""
        self.socket, self._since = sock, now
        for w in self._workers:
            w.start()

    def close(self):
        """Ends the service; calls that have not begun are dropped."""
        if self.socket is None:
            return
        self.socket.close()
        while True:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                break
        for _ in self._workers:
            self._queue.put(None)

    def drain(self, end):
        """Waits until no call is queued or running, but not beyond end."""
        with self._idle:
            self._idle.wait_for(lambda: self._open == 0, max(0.0, end - time.monotonic()))

    def received(self, b, source):
        """Takes a datagram to the service's address."""
        m = wire.Message.parse(b)
        node = self._node
        if m.type not in (layout.TYPE_CALL, layout.TYPE_ONE_WAY) or m.service != self._hash:
            node.counters["malformed"] += 1
            return
        if m.policy != layout.POLICY_NONE:
            node.counters["malformed"] += 1
            return
        now = time.monotonic()
        with self._lock:
            verdict, entry, abandoned = self._callee.receive(now, self._since, source, m)
            for e in abandoned:
                e.tag.canceled.set()
            if verdict == endpoint.RUN:
                entry.tag = call = Incoming(m, source, entry, now + m.timeout / 1000 if m.timeout else None)
                self._open += 1
        for e in abandoned:
            node.give_up((e.tag.caller, e.tag.message.call, False))
        if verdict == endpoint.RUN and m.flags & layout.FLAG_MORE:
            self._fetch(call, len(b))
        elif verdict == endpoint.RUN:
            self._accept(call)
        elif verdict == endpoint.RESEND:
            node.send(entry.reply, source)
        elif verdict in (endpoint.GONE, endpoint.LOST):
            node.send(node.exception(m, layout.UNAVAILABLE, "the service has been restarted since, the call may have run before"), source)
        elif verdict == endpoint.FULL:
            node.counters["full"] += 1
        else:
            node.counters["duplicates"] += 1

    def _fetch(self, call, size):
        """Begins to fetch the rest of a call of which so many bytes have come."""
        m = call.message
        try:
            total = wire.opening(m)[0]
        except FormatError:
            self.forget(call)
            raise
        if total > self._node.max_message:
            self._end(call, self._node.exception(m, layout.BAD_REQUEST, self._node.too_long("a message", total), True))
        elif not self._node.fetch(call.caller, m, False, size, _Rest(self, call)):
            self._node.counters["full"] += 1
            self.forget(call)  # its caller sends it again

    def fetched(self, call, body):
        """Goes on with a large call that has come whole."""
        call.message.payload, call.claim = body, len(body)
        call.message.flags &= ~layout.FLAG_MORE
        self._accept(call)

    def body(self, source, id):
        """The whole payload of a large answer that is kept, b"" if there is none."""
        with self._lock:
            entry = self._callee.find(source, id)
            return entry.body if entry is not None else b""

    def owes(self):
        """Whether callers have not got all of large answers yet."""
        with self._lock:
            return self._callee.owes()

    def settle(self, source, id):
        """Forgets a large answer that its caller has."""
        with self._lock:
            entry = self._callee.find(source, id)
            if entry is not None:
                self._callee.settle(entry)

    def _accept(self, call):
        m = call.message
        receipt = self._receipt(call) if m.type == layout.TYPE_ONE_WAY else None
        try:
            self._queue.put_nowait(call)
        except queue.Full:
            if receipt:
                self.forget(call)  # its caller sends it again
            else:
                self._end(call, self._node.exception(m, layout.OVERLOADED, "all workers are busy and the queue is full", True))
            return
        if receipt:
            self._node.send(receipt, call.caller)

    def _receipt(self, call):
        """What tells the sender of a one-way that it need not be sent again."""
        answer = self._node.answer_header(call.message)
        answer.flags |= layout.FLAG_DONE
        b = answer.pack()
        with self._lock:
            self._callee.answer(call.entry, b)
        return b

    def forget(self, call):
        """Undoes the arrival of a call: it is new when it comes again."""
        self._node.release(call.caller, call.claim)
        with self._idle:
            self._callee.forget(call.entry)
            self._open -= 1
            self._idle.notify_all()

    def _end(self, call, reply, body=b""):
        """Answers a call and keeps the answer, whose whole payload is body if it exceeds a packet."""
        self._node.release(call.caller, call.claim)
        with self._lock:
            self._callee.finish(call.entry, reply, body)
        if reply is not None:
            self._node.send(reply, call.caller)
        with self._idle:
            self._open -= 1
            self._idle.notify_all()

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
            self._end(call, reply, body)

    def _serve(self, call):
        """Runs the processor; returns the answer and, if that is only a first packet, its whole payload."""
        m, node = call.message, self._node
        if call.deadline is not None and time.monotonic() >= call.deadline:
            return node.exception(m, layout.DEADLINE_EXCEEDED, "the deadline passed before the handler began", True), b""
        _current.call = call
        try:
            call.headers, message = wire.take_headers(m)
            protocol = protocol_of(message)
            out = protocol(TMemoryBuffer())
            self._processor.process(protocol(TMemoryBuffer(message)), out)
            front = wire.pack_headers(call.answer_headers) if call.answer_headers else b""
            if out.pointers:
                node.memory.settle()
        except Error as e:
            return node.exception(m, e.code, e.reason), b""
        except ValueError as e:  # headers that do not parse, or are too long
            return node.exception(m, layout.BAD_REQUEST, str(e)), b""
        finally:
            _current.call = None
        answer = node.answer_header(m)
        answer.type = layout.TYPE_EXCEPTION if out.kind == TMessageType.EXCEPTION else layout.TYPE_REPLY
        answer.pointers, answer.payload = out.pointers, front + out.trans.getvalue()
        answer.code = layout.DECLARED if out.declared else layout.OK
        answer.flags |= layout.FLAG_HEADERS if front else 0
        b = answer.pack()
        if len(b) <= node.budget:
            return b, b""
        if len(answer.payload) > node.max_message:
            return node.exception(m, layout.BAD_REQUEST, node.too_long("an answer", len(answer.payload))), b""
        try:
            body = wire.first(answer, node.budget)
        except ValueError as e:
            return node.exception(m, layout.BAD_REQUEST, str(e)), b""
        return answer.pack(), body


class _Rest:
    """What becomes of a large call when its parts have come, or do not come."""

    def __init__(self, service, call):
        self._service, self._call = service, call

    def whole(self, body):
        self._service.fetched(self._call, body)

    def lost(self):
        self._service.forget(self._call)
