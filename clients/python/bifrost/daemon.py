"""The tie between a program and its blade's compute daemon: lines of JSON over a Unix socket."""

import array
import json
import os
import queue
import socket
import threading

from . import layout, sockets, wire
from .errors import Error


class Session:
    """A node's session. Methods may be called concurrently. It ends the node when it is closed or cut."""

    def __init__(self, name, socket_name=None):
        socket_name = socket_name or os.environ.get(layout.JOIN_VARIABLE) or layout.JOIN_SOCKET
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._lock = threading.Lock()
        self._waiting = {}  # by id of the request
        self._next, self._cut = 0, False
        self.rack = {}
        self._policies = {}  # by (service, method), "" for all other methods
        self.done = threading.Event()
        self.on_end = None  # called once, when the node has lost its identity
        path = "\0" + socket_name[1:] if socket_name.startswith("@") else socket_name
        try:
            self._socket.connect(path)
        except OSError as e:
            self._socket.close()
            raise Error(
                layout.UNAVAILABLE,
                "no compute daemon listens on %s in this network namespace: run the program on a compute blade "
                "(`bifrost rack exec c1 -- program`) or start `bifrost compute` (%s)" % (socket_name, e),
                "join",
            ) from e
        threading.Thread(target=self._read, name="bifrost daemon", daemon=True).start()
        joined = self.ask(
            "join", name=name, instance=os.environ.get(layout.PROGRAM_VARIABLE, ""), speaks={"protocol": layout.PROTOCOL, "build": "python"},
            no_ledger=True,  # this runtime runs no exactly-once calls
        )["joined"]
        identity = joined["identity"]
        self.name, self.address, self.incarnation = identity["Name"], identity["Address"], identity["Incarnation"]
        self.blade, self.mtu = identity["Blade"], joined["mtu"]
        self.blocks = identity.get("Blocks") or ()  # of call slots, that the node has
        self.before = identity.get("Before", 0)  # the incarnation before this one; 0 for none

    def ask(self, op, **fields):
        """Sends a request and returns its reply; Error for one that was refused."""
        answer = _Answer()
        with self._lock:
            if self._cut:
                raise Error(layout.UNAVAILABLE, "the compute daemon is gone", op)
            self._next += 1
            number = self._next
            self._waiting[number] = answer
            line = json.dumps(dict(fields, id=number, op=op), separators=(",", ":")) + "\n"
            try:
                self._socket.sendall(line.encode())
            except OSError as e:
                del self._waiting[number]
                raise Error(layout.UNAVAILABLE, "the compute daemon is gone", op) from e
        answer.ready.wait()
        if answer.line is None:
            raise Error(layout.UNAVAILABLE, "the compute daemon is gone", op)
        if answer.line.get("code"):
            raise Error(answer.line["code"], answer.line.get("message", ""), op, answer.line.get("remote", False))
        return answer.line

    def listen(self, address, port):
        """A UDP socket of the node, which the daemon makes, or on a rack in one process what does the same."""
        answer = self.ask("listen", address=address, port=port)
        sock = answer.get("socket")
        if sock is None:
            raise Error(layout.INTERNAL, "no socket came with the daemon's reply", "listen")
        return sockets.Relayed(sock) if answer.get("relayed") else sockets.prepare(sock)

    def policy(self, service, method):
        """What an operator or a deployment says of a method's policy, by reference or by value; None if nothing."""
        method = method.removesuffix(wire.REF_SUFFIX)
        return self._policies.get((service, method)) or self._policies.get((service, ""))

    def holdings(self, now=False):
        """What the switch has of the node's former incarnation: call slots, and the base pointers of regions. It is forgotten then. With now, no slots, and
        the regions that the node owns, or has freed, now: that may take a second."""
        slots, regions, reading, at = [], [], 0, 0
        kind = {"now": True} if now else {}
        while True:
            page = self.ask("holdings", held={"reading": reading, "from": at, **kind})["held"]
            if reading and page.get("reading", 0) != reading:
                slots, regions, reading, at = [], [], 0, 0  # the Gatekeeper has begun anew
                continue
            slots += page.get("slots") or ()
            regions += (socket.inet_pton(socket.AF_INET6, r) for r in page.get("regions") or ())
            reading, at = page.get("reading", 0), page.get("next", 0)
            if not at:
                self.ask("holdings", held={"reading": reading, "heard": True, **kind})
                return slots, regions

    def leave(self):
        """Ends the node in an orderly way: its identity, regions and leases are gone when this returns."""
        if not self.done.is_set():
            self.ask("leave")
        try:
            self._socket.shutdown(socket.SHUT_RDWR)  # ends _read
        except OSError:
            pass  # the daemon has closed it
        self._socket.close()

    def _read(self):
        try:
            for line in self._lines():
                self._take(line)
        except (OSError, ValueError):
            pass  # the connection is cut, or what comes is no line of this protocol: the node has ended
        with self._lock:
            self._cut, waiting, self._waiting = True, self._waiting, {}
        for answer in waiting.values():
            answer.ready.set()
        self._end()

    def _lines(self):
        """What the daemon sends, and with each line that a socket came with, the socket."""
        rest, came = b"", []
        try:
            while True:
                data, beside, _, _ = self._socket.recvmsg(65536, socket.CMSG_SPACE(64), socket.MSG_CMSG_CLOEXEC)
                for level, kind, content in beside:
                    if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                        came += (socket.socket(fileno=d) for d in array.array("i", content))
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    line = json.loads(line)
                    if line.get("socket"):
                        line["socket"] = came.pop(0)
                    yield line
        finally:
            for sock in came:
                sock.close()

    def _take(self, line):
        rack = line.get("rack") or (line.get("joined") or {}).get("rack")
        if rack:
            if rack.get("policy_version", 0) != self.rack.get("policy_version", 0):
                self._policies = {(p["service"], p.get("method", "")): p["policy"] for p in rack.get("policies") or ()}
            self.rack = rack
        with self._lock:
            answer = self._waiting.pop(line.get("id", 0), None)
        if answer is not None:
            answer.line = line
            answer.ready.set()
        elif line.get("socket"):
            line["socket"].close()
        if line.get("ended"):
            self._end()

    def _end(self):
        """Says once that the node has lost its identity."""
        with self._lock:
            ended = self.done.is_set()
            self.done.set()
        if self.on_end and not ended:
            self.on_end()


class Inquiries:
    """What is asked of a session one after the other, since the Gatekeeper may be away for long. put may be called
    concurrently."""

    def __init__(self, session):
        self._session, self._queue = session, queue.SimpleQueue()
        self._lock, self._asked = threading.Lock(), set()
        threading.Thread(target=self._run, name="bifrost inquiries", daemon=True).start()

    def put(self, then, op, **fields):
        """Asks something, unless the same is asked already. then gets the reply, or the Error, in another thread."""
        key = op, str(fields)
        with self._lock:
            if key in self._asked:
                return
            self._asked.add(key)
        self._queue.put((key, then, op, fields))

    def close(self):
        """Ends the thread when the session has ended."""
        self._queue.put(None)

    def _run(self):
        for key, then, op, fields in iter(self._queue.get, None):
            try:
                answer = self._session.ask(op, **fields)
            except Error as e:
                answer = e
            with self._lock:
                self._asked.remove(key)
            then(answer)


class _Answer:
    """A reply that somebody waits for."""

    def __init__(self):
        self.ready, self.line = threading.Event(), None
