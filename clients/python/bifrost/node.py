"""A program as a node of the rack: it calls services, serves its own, and uses the rack's memory."""

from __future__ import annotations

import itertools
import logging
import os
import select
import selectors
import socket
import sys
import threading
import time
from collections.abc import Iterable

from . import audit, bulk, direct, endpoint, layout, wire
from .daemon import Inquiries, Session
from .errors import Error, FormatError
from .learned import Learned
from .memory import Memory
from .protocol import ClientProtocol
from .service import NOT_HANDED_OVER, Calls, Service, current

log = logging.getLogger("bifrost")

POLICIES = {"none": layout.POLICY_NONE, "recover": layout.POLICY_RECOVER}
SLOT_PATIENCE = 1.0  # seconds for which a call of a handler waits for a call slot, if no more are to come
ONEWAY_LIFETIME = 30.0  # seconds for which a one-way of policy none is sent again
MAX_TEXT = 4096  # bytes of an error's text at most


def default_name() -> str:
    """APP/PROGRAM for a program that a deployment has started, else the name of its executable."""
    deployed, _, _ = os.environ.get(layout.PROGRAM_VARIABLE, "").rpartition("/")
    return deployed or os.path.basename(sys.argv[0])


def join(name: str | None = None, socket_name: str | None = None, max_message: int = layout.MAX_MESSAGE) -> Node:
    """Makes this program a node of the rack that its machine, or network namespace, is a compute blade of.

    max_message is how many bytes a message has at most, sent or received. Those that are being received
    or served take at most as much memory for each sender, and four times as much for all."""
    return Node(Session(name or default_name(), socket_name), max_message)


class Node:
    """This program as the rack sees it. Methods may be called concurrently. Use it as a context manager, or close it.

    memory is the rack's memory; address the node's IPv6 address; done is set when the node has ended.
    """

    name: str
    address: str
    incarnation: int
    done: threading.Event
    memory: Memory

    def __init__(self, session, max_message=layout.MAX_MESSAGE):
        self._session, self.max_message = session, max_message
        self.name, self.address, self.incarnation = session.name, session.address, session.incarnation
        self.done = session.done
        mtu = min(session.mtu, session.rack.get("mtu") or session.mtu)
        self.budget = min(mtu - layout.OVERHEAD, layout.MAX_DATAGRAM)
        self._socket = session.listen(self.address, layout.PORT_RPC)
        self.memory = Memory(session.listen(self.address, layout.PORT_DSM), self.incarnation, lambda: session.rack, self.budget, self._ask_batches)
        held, regions = session.holdings() if session.before else ((), ())
        self._lock = threading.Lock()  # over what follows
        self._granted = threading.Condition(self._lock)  # a call that has waited for a slot has one
        self._awaited = set()  # calls and questions for whose ends _look waits
        self._ended = threading.Condition(self._lock)  # all of them are over
        self._caller = endpoint.Caller(self.address, self.incarnation, lambda _: self._granted.notify_all())
        self._caller.slots.grant(session.blocks)
        self._rtts = {}
        self._calls = Calls(self)
        self._servers = direct.Servers(self._ask_serving)
        self._served = threading.Condition(self._lock)  # the Gatekeeper has said who serves
        self._forgets = direct.Forgets()
        self.learned = Learned()
        self.shares = itertools.count(1)  # numbers of the standing leases that the node gives
        self._inquiries = Inquiries(session)
        self._slot_inquiries = Inquiries(session)  # the Gatekeeper alone answers them, daemons most others
        self._audit = audit.Audit(self._look, self.done)
        self._closed = False
        self.counters = {"malformed": 0, "duplicates": 0, "resent": 0, "full": 0, "stale": 0}
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._watch(self._socket, self._received)
        self._direct = session.listen(self.address, layout.PORT_DIRECT)
        self._watch(self._direct, self._direct_received)
        self._parts = session.listen(self.address, layout.PORT_BULK)
        window = min(self._parts.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2, layout.BULK_PULL_BYTES)
        self._incoming = bulk.Receiver(window, max_message)  # the pump's, but for release
        self._watch(self._parts, self._part_received)
        session.on_end = self._fail
        self._go_on_from(held, regions)
        self._pump = threading.Thread(target=self._run, name="bifrost node", daemon=True)
        self._pump.start()

    @property
    def prefix(self) -> int:
        """The byte in which global pointers of this rack begin (wire.make_pointer)."""
        return self._session.rack.get("dsm_prefix", 0)

    def __enter__(self) -> Node:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def client(self, service: str, policy: str | None = None, timeout: float | None = None) -> ClientProtocol:
        """A protocol for a generated client: Arrays.Client(node.client("Arrays")).

        policy is what becomes of calls when a node fails: "none" (at most once) or "recover" (exactly once), the
        default. What an operator or the deployment says goes before it. timeout is the seconds that a call may
        take, None for as long as it takes. It raises Error; after DEADLINE_EXCEEDED the call may have run."""
        if policy is not None and policy not in POLICIES:
            raise Error(layout.UNSUPPORTED, "policy %r: this client knows none and recover" % policy, "client")
        return ClientProtocol(self, service, policy, timeout)

    def export(self, service: str, processor, workers: int = 16, queue: int = 1024) -> None:
        """Serves a service with a generated processor. It returns when the rack routes calls to this node.

        Calls must be of policy none: deploy the program with `policy: none`, or make the callers ask for it. workers
        handlers run at once, queue calls wait; further ones are refused as OVERLOADED. A handler learns who calls
        from bifrost.current()."""
        s = Service(self, self._calls, service, processor, workers, queue)
        self._calls.add(s)
        try:
            methods = [{"name": m, "policy": "none"} for m in sorted(processor._processMap)]
            export = {"node": self.address, "incarnation": self.incarnation, "service": service, "methods": methods}
            self._session.ask("export", export=export)
        except Error:
            self._calls.remove(s)
            s.close()
            raise

    def who(self, address: str) -> dict:
        """What the Gatekeeper knows of the node at an address, such as bifrost.current().caller: a dictionary with
        name, blade, services, and the deployment and program that it belongs to. Error NOT_FOUND: it is gone."""
        return self._session.ask("who", address=address)["who"]

    def close(self, timeout: float = 3.0) -> None:
        """Ends the node in an orderly way: the rack sends it no more calls, those that it has got finish, and it
        leaves the rack. What takes longer than timeout seconds from then on is cut off."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._served.notify_all()
            self._granted.notify_all()
        if self._calls.serves() and not self.done.is_set():
            withdraw = {"node": self.address, "incarnation": self.incarnation, "service": "", "methods": None, "withdraw": True}
            try:
                self._session.ask("export", export=withdraw)
            except Error as e:
                log.warning("calls may still come while the node closes: %s", e)
        end = time.monotonic() + timeout
        self._calls.drain(end)
        while self._unsettled() and time.monotonic() < end and not self.done.wait(0.01):
            pass
        self._session.on_end = None
        try:
            self._session.leave()
        finally:
            self._fail()

    def _unsettled(self):
        """Whether calls are on their way that nobody waits for, or answers that are not fetched."""
        with self._lock:
            if any(c.waiter is None for c in self._caller.calls.values()):
                return True
        return self._calls.owes()

    # The calling side.

    def call(self, service: str, method: str, payload: bytes, pointers: Iterable[bytes] = (), oneway: bool = False, policy: str | None = None,
             timeout: float | None = None, headers: dict[str, str] | None = None) -> tuple[dict, bytes]:
        """Makes a call with a Thrift message and returns the headers of the answer and the message, {} and b"" for a
        one-way. pointers are the global pointers in the message: their regions are lent until the answer, or handed over by a one-way."""
        regions = list(map(wire.region_of, pointers))
        return self.exchange(service, method, payload, regions, oneway, policy, timeout, headers)[:2]

    def policy(self, service, method, wanted):
        """The policy of a call; None if it is none of this client's."""
        return POLICIES.get(self._session.policy(service, method) or wanted or "recover")

    def exchange(self, service, method, payload, regions, oneway, policy, timeout, headers):
        """Does the same with the regions that pointers in the message lead into, and returns those of the answer, too."""
        op = "call %s.%s" % (service, method)
        policy = self.policy(service, method, policy)
        if policy is None:
            raise Error(layout.UNSUPPORTED, "the policy that the operator wants is none of this client's", op)
        try:
            wanted = wire.method_of(method)
            front = wire.pack_headers(headers) if headers else b""
            by = (lambda _: wire.NO_USE) if oneway else self.memory.lent_by  # a one-way hands over what is its sender's own
            own = [r for r in regions if by(r) == wire.NO_USE]
            lists = wire.lists_of(regions, by)
        except ValueError as e:
            raise Error(layout.BAD_REQUEST, str(e), op) from e
        if not all(map(self.memory.account.owns, own)):
            why = "it names a region that is not this program's: it has freed it or handed it over, or never had it"
            raise Error(layout.PERMISSION_DENIED, why, op, never_began=True)
        if regions:
            self.memory.settle()
        end = None if timeout is None else time.monotonic() + timeout
        called = direct.Method(service, method, policy == layout.POLICY_NONE)
        while True:
            server = self._server(op, called, timeout, end)
            m = wire.Message(
                type=layout.TYPE_ONE_WAY if oneway else layout.TYPE_CALL, flags=policy | (layout.FLAG_HEADERS if front else 0),
                name_length=len(method.encode()), method=wanted, service=wire.service_hash(service),
                caller_incarnation=self.incarnation, listed=lists, payload=front + payload, trailer=_trailer(oneway),
            )
            if called.at_most_once:
                m.callee_incarnation = server.incarnation
            call = endpoint.Call(m, None, server.node)
            call.lends, call.gives = ((), own) if oneway else (own, ())
            call.body = self._cut(op, m)
            call.deadline = end
            waiter = self._begin(op, call, (service, method, policy))
            if waiter is None:
                return {}, b"", ()
            if not waiter.ready.wait(_left(end)):
                if self._give_up(call):
                    raise Error(layout.DEADLINE_EXCEEDED, "no answer in %g s; the call may have run" % timeout, op)
                waiter.ready.wait()  # it was answered at the last moment
            answer = waiter.answer
            if answer is None or not answer.refuses:
                if called.at_most_once and answer is not None and answer.type == layout.TYPE_EXCEPTION and answer.code == layout.UNAVAILABLE:
                    with self._lock:
                        self._servers.doubt(called)
                return self._answer(op, answer, oneway)
            with self._lock:
                self._servers.refused(time.monotonic(), called, server)

    def _begin(self, op, call, key):
        """Sends a call; returns whoever waits for it, None for a one-way of policy none. key is of what its answers' times
        are like."""
        m, waiter = call.message, None
        with self._granted:
            self._take_slot(op, call)
            now = time.monotonic()
            if call.deadline is not None:
                m.timeout = endpoint.milliseconds(call.deadline - now)
            if m.type == layout.TYPE_ONE_WAY and m.policy == layout.POLICY_NONE:
                call.expires = now + ONEWAY_LIFETIME if call.deadline is None else call.deadline
            else:
                call.waiter = waiter = _Waiter()
            call.rtt = self._rtts.setdefault(key, endpoint.RTT())
            self._caller.begin(now, call)
            self.memory.account.lend(call.lends)
            self.memory.account.drop(call.gives)
        self._send_call(call, m.pack())
        self._wake()
        return waiter

    def _take_slot(self, op, call):
        """Gives a call a slot. It waits for one until the deadline. Handlers that call each other might wait for each other's slots
        for ever, so they do not wait for long once there are no more to come. Whoever calls it holds the lock."""
        slots, late = self._caller.slots, False

        def ready():
            return call.slot is not None or self.done.is_set() or self._closed

        def rest(most):  # seconds that the call may yet wait, at most so many
            ends = [t for t in (call.deadline and call.deadline - time.monotonic(), most) if t is not None]
            return max(0.0, min(ends)) if ends else None

        if not ready() and not slots.take(call):
            self._wake()  # to ask for more slots
            patience = None if current() is None else SLOT_PATIENCE
            while not self._granted.wait_for(ready, rest(patience)) and rest(None) != 0.0:
                late = not slots.hopes()  # the Gatekeeper may have more when it is back
                if late:
                    break
            if call.slot is None:
                slots.leave(call)
        if self.done.is_set() or self._closed:
            raise Error(layout.UNAVAILABLE, "the node has ended", op, never_began=True)
        if call.slot is None and late:
            why = "no call slot was free for %g s: the node has as many calls out as it may have, or half of them to this node" % SLOT_PATIENCE
            raise Error(layout.OVERLOADED, why, op, never_began=True)
        if call.slot is None:
            raise Error(layout.DEADLINE_EXCEEDED, "no call slot was free", op, never_began=True)

    def ask_share(self, wish):
        """Asks the Gatekeeper for a standing lease, or to take one back: returns how far that has come."""
        return self._session.ask("share", share=wish)["share"]

    def _ask_batches(self, machine, want):
        return self._session.ask("batches", machine=machine, want=want).get("batches") or ()

    def _ask_blocks(self, want):
        def told(answer):
            with self._lock:
                self._caller.slots.told(time.monotonic(), None if isinstance(answer, Error) else answer.get("blocks") or ())
            self._wake()

        self._slot_inquiries.put(told, "blocks", want=want)

    def _send_call(self, call, datagram):
        """Puts a copy of a call on the wire."""
        self.send(datagram, call.node, layout.PORT_DIRECT)

    def _cut(self, op, m):
        """Makes a message that exceeds a packet the first packet of itself, and returns its whole payload. Else it returns
        nothing."""
        try:
            if len(m.pack()) <= self.budget:
                return b""
            if len(m.payload) > self.max_message:
                raise Error(layout.BAD_REQUEST, self.too_long("a message", len(m.payload)), op)
            if m.policy != layout.POLICY_NONE:
                m.trailer += wire.arguments(m)
            return wire.first(m, self.budget)
        except ValueError as e:
            raise Error(layout.BAD_REQUEST, str(e), op) from e

    def too_long(self, what, size):
        """Why a message is refused."""
        return "%s of %d bytes, at most %d are taken: pass it by reference, or raise max_message" % (what, size, self.max_message)

    def _give_up(self, call):
        """Ends the wait for an answer; False if it has come. The call goes on until it is answered, for its slot is open in the switch; its
        callee is told not to begin any more."""
        with self._lock:
            if call.message.call not in self._caller.calls:
                return False
            self._orphan(call)
            call.deadline = time.monotonic()
            if call.message.type == layout.TYPE_CALL and call.message.policy == layout.POLICY_NONE:
                call.message.flags |= layout.FLAG_GIVEN_UP
            datagram = call.again(call.deadline)
        self._send_call(call, datagram)
        return True

    def _orphan(self, call):
        """Notes that nobody waits for a call any more; returns who did. Whoever calls it holds the lock."""
        self.memory.account.back(call.lends)
        waiter, call.waiter, call.lends = call.waiter, None, ()
        return waiter

    def _answer(self, op, m, oneway):
        if m is None:
            raise Error(layout.UNAVAILABLE, "the node has lost its identity; the call may have run", op)
        if m.type == layout.TYPE_EXCEPTION and m.code:
            raise Error(m.code, m.payload.decode("utf-8", "replace"), op, remote=True, never_began=bool(m.flags & layout.FLAG_UNBEGUN))
        if oneway:
            return {}, b"", ()
        try:
            return (*wire.take_headers(m), m.regions)
        except FormatError as e:
            raise Error(layout.BAD_REQUEST, "malformed answer: %s" % e, op, remote=True) from e

    def send(self, datagram, address, port=layout.PORT_RPC):
        """Puts a message on the wire; a failure is a loss like any other. A large one has a port of its own."""
        if wire.is_first(datagram):
            port = layout.PORT_BULK
        try:
            {layout.PORT_DIRECT: self._direct, layout.PORT_BULK: self._parts}.get(port, self._socket).sendto(datagram, (address, port))
        except OSError:
            pass

    # Who takes calls, and where those have gone that wait. The Gatekeeper says so.

    def _server(self, op, method, timeout, end):
        """The direct.Server that a call goes to. It waits for the Gatekeeper to say so, until the deadline."""
        since = time.monotonic()
        with self._served:
            while True:
                if self.done.is_set() or self._closed:
                    raise Error(layout.UNAVAILABLE, "the node has ended", op, never_began=True)
                try:
                    server = self._servers.choose(time.monotonic(), method, since)
                except direct.NobodyServes as e:
                    raise Error(layout.UNAVAILABLE, "no node takes such calls of it" + (": %s" % e if e.args[0] else ""), op, never_began=True) from None
                if server is not None:
                    return server
                left = _left(end)
                if left is not None and left <= 0:
                    raise Error(layout.DEADLINE_EXCEEDED, "the Gatekeeper has not said in %g s who serves it" % timeout, op, never_began=True)
                self._served.wait(direct.AGAIN if left is None else min(direct.AGAIN, left))

    def _ask_serving(self, method):
        def told(answer):
            with self._served:
                if isinstance(answer, Error):
                    self._servers.failed(time.monotonic(), method)
                else:
                    serving = answer["serving"]
                    servers = list(map(direct.Server, serving.get("nodes") or (), serving.get("incarnations") or ()))
                    self._servers.told(time.monotonic(), method, servers, serving.get("awaited", False), serving.get("why", ""))
                self._served.notify_all()

        question = {"service": method.service, "method": method.name}
        if method.at_most_once:
            question["at_most_once"] = True
        self._inquiries.put(told, "serving", serving=question)

    def _ask_whether_there(self, node):
        """Asks about a node that has not acknowledged for long what it is to forget. One that is gone for good never will."""

        def told(answer):
            if answer.code == layout.NOT_FOUND if isinstance(answer, Error) else answer["who"].get("left", False):
                with self._lock:
                    self._forgets.gone(node)

        self._inquiries.put(told, "who", address=node)

    # The pump: one thread that reads all sockets and sends again what is due.

    def _watch(self, sock, received):
        sock.setblocking(False)
        self._selector.register(sock, selectors.EVENT_READ, received)
        self._wake()

    def _wake(self):
        """Makes the pump look again at what is due."""
        try:
            os.write(self._wake_write, b"x")
        except OSError:
            pass  # the pipe is full: the pump is about to look; or the node has ended

    def _run(self):
        while not self.done.is_set():
            for key, _ in self._selector.select(self._tick()):
                try:
                    if key.data is None:
                        os.read(self._wake_read, 4096)
                        continue
                    while True:
                        b, source = key.fileobj.recvfrom(65536)
                        key.data(b, source[0].split("%")[0])
                except BlockingIOError:
                    continue
                except FormatError:
                    self.counters["malformed"] += 1
                except OSError:
                    if not self.done.is_set():
                        log.debug("read", exc_info=True)

    def _tick(self):
        """Sends again what is due; returns the seconds until there is more to do."""
        now = time.monotonic()
        with self._lock:
            for node, id in self._caller.left(now):
                self._forgets.add(now, node, id)
            resend, expired = self._caller.tick(now)
            again = [(c, c.again(now)) for c in resend]
            forgets = self._forgets.tick(now)
            want = self._caller.slots.want(now)
            times = [self._caller.due(), self._forgets.due(), self._caller.slots.due()]
        for call in expired:
            log.warning("one-way %s: nobody has acknowledged it", call.message.call.hex())
        self.counters["resent"] += len(resend)
        for call, datagram in again:
            self._send_call(call, datagram)
        if want:
            self._ask_blocks(want)
        for node, ids, _ in forgets:
            for datagram in wire.forgets(ids, self.incarnation, self.budget):
                self.send(datagram, node, layout.PORT_DIRECT)
        for node in {node for node, _, silent in forgets if silent}:
            self._ask_whether_there(node)
        for t in self._incoming.tick(now):
            self._lost(t)
        self._pull(now)
        times.append(self._incoming.due())
        return max(0.0, min((t for t in times if t is not None), default=now + 60.0) - now)

    def _received(self, b, source):
        """Takes a datagram to the port for answers."""
        m = wire.Message.parse(b)
        if m.turned:
            self._turned_back(m, source)
            return
        if m.flags & layout.FLAG_MORE:
            raise FormatError("a large message, which has a port of its own")
        self._answered(m, source, len(b))

    def _answered(self, m, source, size):
        """Takes an answer, or its first packet, of so many bytes."""
        total = wire.opening(m)[0] if m.flags & layout.FLAG_MORE else 0
        with self._lock:
            call = self._caller.find(source, m)
            if call is None:
                self.counters["duplicates"] += 1
                return
            unread = call.waiter is None and (source, m.call, True) not in self._incoming.open  # only what it hands over counts
        if total and not unread:
            self._fetch_answer(m, source, size)
            return
        if total:
            self._say_done(source, m, total)
        self._take_answer(source, m)

    def _turned_back(self, m, source):
        """Takes a message that the switch has turned around, with the address that it was for."""
        if m.type in (layout.TYPE_REPLY, layout.TYPE_EXCEPTION):
            if m.turned == layout.TURNED_DENIED and m.code != layout.PERMISSION_DENIED:
                self.send(self.exception(m, layout.PERMISSION_DENIED, NOT_HANDED_OVER), source)
            return  # of what is lent the next copy of the call asks again
        why = _failure(*_TURNED.get(m.turned, _TURNED[layout.TURNED_GONE]))
        why.flags |= m.policy
        with self._lock:
            call, over = self._caller.turned(time.monotonic(), source, m)
            if call is None:
                self.counters["duplicates"] += 1
            then = self._over(call, why, why) if over else None
        if then:
            then()

    def _go_on_from(self, held, regions):
        """Asks what has become of the calls of a former incarnation that are open in the switch, so that their slots close, and frees what it has
        left: nobody accounts for it."""
        self.memory.free_later(list(regions))
        questions, now = [], time.monotonic()
        for s in held:
            if s["state"] != layout.SLOT_OPEN or s.get("place", 0):
                continue
            m = wire.Message(type=layout.TYPE_ASK, slot=s["slot"], number=s["number"], caller_incarnation=self.incarnation)
            call = endpoint.Call(m, endpoint.RTT(), s.get("callee"))
            while any((o["slot"], o["number"], o.get("place", 0)) == (m.slot + call.slots, m.number, call.slots) for o in held):
                call.slots += 1
            if s.get("given"):
                call.gives = [wire.region_of(socket.inet_pton(socket.AF_INET6, r)) for r in s.get("regions") or ()]
            with self._lock:
                if self._caller.slots.hold(call, m.slot) and call.node:
                    self._caller.ask(now, call)
                    questions.append(call)
        for call in questions:
            self._send_call(call, call.message.pack())

    def _direct_received(self, b, source):
        """Takes a datagram to the port for calls: a call, or what a node says that has got some of ours."""
        m = wire.Message.parse(b)
        if m.turned:
            self._turned_back(m, source)
            return
        if m.flags & layout.FLAG_MORE:
            raise FormatError("a large message, which has a port of its own")
        if m.type == layout.TYPE_ASK:
            self._calls.asked(m, source)
            return
        if m.type != layout.TYPE_ACK:
            self._calls.received(m, len(b), source)
            return
        now = time.monotonic()
        with self._lock:
            if m.flags & layout.FLAG_SETTLED:
                self._forgets.forgotten(now, source, wire.forgotten(m))
            elif m.flags & layout.FLAG_UNBEGUN and m.call == wire.NO_ID:
                self._caller.restarted(now, source)

    def _over(self, call, m, told):
        """Takes the answer m that has ended a call: the account has what m brings from now on. Returns a function, which is to be called without the lock:
        whoever waits for the answer gets told, which is m or takes its place, and what nobody gets is freed. Whoever calls _over holds the lock."""
        account, gains = self.memory.account, call.gives  # a one-way's are its sender's again
        if m.type == layout.TYPE_REPLY:
            gains = [r for r in m.regions if not account.owns(r)]
            if any(map(account.owns, m.had_before)):
                told = _failure(layout.PERMISSION_DENIED, "the answer hands over a region that was its caller's already")
        account.add(gains)
        waiter = self._orphan(call)
        self._awaited.discard(call)
        if not self._awaited:
            self._ended.notify_all()

        def then():
            if waiter is None or told is not m:
                self.memory.free_later([wire.base_of(self.prefix, r) for r in gains])
            if audit.may_have_brought(call.message.type == layout.TYPE_ASK, m):
                self._audit.want()
            if waiter is not None:
                waiter.answer = told
                waiter.ready.set()
            elif told.type == layout.TYPE_EXCEPTION and call.message.type == layout.TYPE_ONE_WAY:
                log.warning("one-way %s has failed: %s", call.message.call.hex(), told.payload.decode("utf-8", "replace"))

        return then

    def _look(self):
        """Frees what the node owns and nothing explains."""
        account, out = self.memory.account, self._caller.calls
        account.watch()
        account.explain(self._calls.hands())
        with self._lock:
            account.explain([r for call in out.values() for r in call.gives])
        account.listed(map(wire.region_of, self._session.holdings(now=True)[1]))
        with self._lock:
            self._awaited = set(out.values())
            self._ended.wait_for(lambda: not self._awaited or self.done.is_set())
        if not self.done.is_set():  # else calls were cut off
            self.memory.free_later([wire.base_of(self.prefix, r) for r in account.unknown()])

    # Messages that exceed a packet. All of this but release is the pump's.

    def fetch(self, source, m, answer, size, rest):
        """Begins to fetch what a first packet of so many bytes leaves out; rest is told what becomes of that. False:
        there is no room now."""
        total, to, parts, start = wire.opening(m)
        h = bulk.Header(
            call=m.call, answer=answer, caller_incarnation=m.caller_incarnation, total=total, first=len(start),
            callee_incarnation=m.callee_incarnation if answer else self.incarnation,
        )
        now, own = time.monotonic(), int.from_bytes(socket.inet_pton(socket.AF_INET6, self.address)[12:], "big")
        t = self._incoming.begin(now, (source, m.call, answer), h, start, size - bulk.SIZE, (parts or bulk.pushes(size - bulk.SIZE)) if to == own else 0, rest)
        if t is None:
            return False
        self._go_on(t)
        return True

    def _fetch_answer(self, m, source, size):
        """Takes the first packet of a large answer, which has so many bytes."""
        total = wire.opening(m)[0]
        if (source, m.call, True) in self._incoming.open:
            self.counters["duplicates"] += 1
        elif total <= self.max_message:
            if not self.fetch(source, m, True, size, _Answer(self, source, m)):
                self.counters["full"] += 1  # it will be asked for again
        else:
            self._take_answer(source, m, _failure(layout.BAD_REQUEST, self.too_long("the answer is a message", total), m.policy))

    def answer_fetched(self, source, m):
        """Goes on with a large answer that has come whole."""
        self._say_done(source, m, len(m.payload))
        self.release(source, len(m.payload))
        self._take_answer(source, m)

    def _say_done(self, source, m, total):
        """Tells a callee that nobody asks any more for a large answer of so many bytes."""
        h = bulk.Header(
            kind=bulk.DONE, answer=1, call=m.call, total=total, caller_incarnation=m.caller_incarnation, callee_incarnation=m.callee_incarnation
        )
        self._send_part(h.pack(), source)

    def _take_answer(self, source, m, told=None):
        """Takes an answer of which no more is fetched. Whoever waits for it gets told in its place, if there is such a message."""
        with self._lock:
            call = self._caller.receive(time.monotonic(), source, m)
            then = self._over(call, m, told or m) if call is not None else None
        if then:
            then()

    def give_up(self, key):
        """Ends a transfer, if there is one."""
        t = self._incoming.end(key)
        if t is not None:
            t.tag.lost()

    def release(self, peer, size):
        """Gives back what a large message counts for."""
        if size:
            self._incoming.release(peer, size)

    def _lost(self, t):
        self.counters["full"] += 1
        t.tag.lost()

    def _go_on(self, t):
        """Ends a transfer that is whole."""
        if t.whole():
            self._incoming.finish(t)
            t.tag.whole(t.body)
        else:
            self._pull(time.monotonic())

    def _pull(self, now):
        """Asks for parts."""
        for t, h in self._incoming.asks(now):
            self._send_part(h.pack(), t.key[0])
            if h.answer:
                with self._lock:
                    call = self._caller.postpone(now, h.call)
                if call is None:
                    self.give_up(t.key)

    def _part_received(self, b, source):
        """Takes a datagram to the port for large messages."""
        if int.from_bytes(b[:2], "big") == layout.RPC_MAGIC:
            self._first_received(wire.Message.parse(b), source, len(b))
            return
        h = bulk.Header.parse(b)
        key = (source, h.call, bool(h.answer))
        if h.kind == bulk.PART:
            t = self._incoming.receive(time.monotonic(), key, h)
            if t is not None:
                self._go_on(t)
        elif h.kind == bulk.PULL:
            self._serve_pull(h, source)
        elif h.kind == bulk.DONE:
            self._calls.settle(source, h.call)
        else:
            self.give_up(key)

    def _first_received(self, m, source, size):
        """Takes a large message's first packet, of so many bytes."""
        if m.turned:
            self._turned_back(m, source)
            return
        if not m.flags & layout.FLAG_MORE:
            raise FormatError("type %d, flags %#x: no first packet of a large message" % (m.type, m.flags))
        if m.type in (layout.TYPE_REPLY, layout.TYPE_EXCEPTION):
            self._answered(m, source, size)
        else:
            self._calls.received(m, size, source)

    def _serve_pull(self, h, source):
        """Sends the parts that a receiver has asked for."""
        body = b""
        if h.answer and h.callee_incarnation == self.incarnation:
            body = self._calls.body(source, h.call)
        elif not h.answer and h.caller_incarnation == self.incarnation:
            with self._lock:
                call = self._caller.calls.get(h.call)
                if call is not None and call.body and call.node == source:
                    self._caller.postpone(time.monotonic(), h.call)
                    body = call.body
        if len(body) != h.total or h.size != self.budget - bulk.SIZE:  # else it may be of the last incarnation
            self._send_part(h.of(bulk.GONE, size=0).pack(), source)
            return
        view = memoryview(body)
        for at, n in bulk.cut(h.spans, h.size):
            self._send_part(h.of(bulk.PART, offset=at, size=n).pack(), source, view[at : at + n])

    def _send_part(self, header, to, data=b""):
        """Puts a packet on the wire, when the send buffer has room; a failure is a loss like any other."""
        for _ in range(2):
            try:
                self._parts.sendmsg([header, data], [], 0, (to, layout.PORT_BULK))
                return
            except BlockingIOError:
                select.select([], [self._parts], [], 0.1)
            except OSError:
                return

    # The called side; the rest is in service.py.

    def answer_header(self, m):
        """The header of an answer to a call, as a message without payload."""
        fields = {name: getattr(m, name) for name in layout.RPC_FIELDS if name not in ("magic", "version")}
        fields.update(type=layout.TYPE_REPLY, flags=m.policy, timeout=0, code=0, turned=0, had=0, callee_incarnation=self.incarnation)
        return wire.Message(**fields)

    def exception(self, m, code, why, unbegun=False):
        """The datagram of a system exception in answer to a call, which did not begin if it is unbegun."""
        answer = self.answer_header(m)
        answer.flags |= layout.FLAG_UNBEGUN if unbegun else 0
        answer.type, answer.code = layout.TYPE_EXCEPTION, code
        answer.payload = why.encode()[: min(MAX_TEXT, self.budget - wire.RPC_SIZE)].decode("utf-8", "ignore").encode()
        return answer.pack()

    def _fail(self):
        """Ends the node at once: calls that are out fail."""
        self.done.set()
        with self._lock:
            calls = list(self._caller.calls.values())
            for call in calls:
                self._caller.end(call)
            self._served.notify_all()
            self._granted.notify_all()
            self._ended.notify_all()
        self._inquiries.close()
        self._slot_inquiries.close()
        for call in calls:
            if call.waiter:
                call.waiter.ready.set()
        self._wake()
        if threading.current_thread() is not self._pump:
            self._pump.join()
        self._calls.close()
        for sock in self._socket, self._direct, self._parts:
            sock.close()
        self.memory.close()


class _Answer:
    """What becomes of a large answer when its parts have come, or do not come: then its call is sent again."""

    def __init__(self, node, source, m):
        self._node, self._source, self._first = node, source, m

    def whole(self, body):
        m = self._first
        m.payload = body
        m.flags &= ~layout.FLAG_MORE
        self._node.answer_fetched(self._source, m)

    def lost(self):
        pass


_GONE = "the node that was called is gone"

# What becomes of a call that the switch has turned around: the code, why, and flags.
_TURNED = {
    layout.TURNED_DENIED: (
        layout.PERMISSION_DENIED,
        "the switch does not let the call pass: it names a region to which its caller has no right, or that is handed over already", layout.FLAG_UNBEGUN,
    ),
    layout.TURNED_GONE: (layout.UNAVAILABLE, _GONE),
    layout.TURNED_NEVER_BEGUN: (layout.UNAVAILABLE, _GONE, layout.FLAG_UNBEGUN),
}


def _failure(code, why, flags=0):
    """An exception in the place of an answer."""
    return wire.Message(type=layout.TYPE_EXCEPTION, code=code, flags=flags, payload=why.encode())


class _Waiter:
    """Whoever waits for an answer."""

    def __init__(self):
        self.ready, self.answer = threading.Event(), None


def _left(end):
    """The seconds until a deadline; None if there is none."""
    return None if end is None else end - time.monotonic()


def _trailer(oneway):
    """The trailer of a call from this thread: who waits for the call, as far as the handler that makes it knows. Nobody waits
    for a one-way."""
    serving = current()
    return wire.lineage(serving.message) if serving is not None and not oneway else b""
