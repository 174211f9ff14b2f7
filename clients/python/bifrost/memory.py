"""The memory of the rack: regions that a node allocates, reads, writes and frees by global pointers."""

import collections
import random
import socket
import threading
import time

from . import layout, wire
from .account import Account
from .batches import Batches
from .errors import Error, FormatError
from .leases import Borrows
from .service import current

WINDOW = 4  # datagrams under way at a time: they fit the smallest receive buffer that Linux gives
FIRST_TIMEOUT = 0.02  # seconds until a request is sent again; then twice as long each time, but at most a second
GIVE_UP = 30.0  # seconds for which a machine may be silent
TRIES = 16  # slots that an allocation tries which turn out not to be free
LENT_PAUSE, MAX_LENT_PAUSE = 0.001, 0.1  # seconds until what is turned around since its region is lent is tried again: at first, and at most
REST = 0.1  # seconds between two looks for a free slot, while those that were freed rest


_READS = (layout.OP_READ, layout.OP_SLOTS)  # the first copy answers, as often as it is asked


class _Request:
    """One datagram's worth of an operation."""

    def __init__(self, op, to, length=0, data=b"", place=0, asks=None, by=wire.NO_USE):
        self.op, self.to, self.length, self.data, self.place = op, to, length, data, place
        self.by = by  # the Use of a slot by which a handler was lent what it reads
        self.asks = asks  # the request that a settle asks about
        self.number = self.flags = self.sends = 0
        self.due = 0.0
        self.heard, self.good, self.bad, self.applied = set(), False, layout.OK, set()
        self.why = 0  # flags of the copy that has refused it
        self.settling, self.verdict = False, layout.OK  # a settle asks about it; the outcome, if no copy has carried it out
        self.owner = None

    def fresh(self):
        """Forgets what copies have answered."""
        self.heard, self.good, self.bad, self.applied = set(), False, layout.OK, set()


class _Machine:
    """What the client knows of a memory machine."""

    def __init__(self):
        self.next, self.open = 1, {}  # number of the next request; what is not settled, by number
        self.epoch, self.members = 0, 0  # of the newest set of copies

    def given_up(self):
        """Whether something is out that nobody waits for: nothing may overtake it."""
        return any(r.owner is None and r.asks is None for r in self.open.values())

    def floor(self):
        return min(self.open, default=self.next)


class _Operation:
    """What a caller waits for."""

    def __init__(self):
        self.left, self.code, self.flags, self.pieces = 0, layout.OK, 0, {}


class Memory:
    """A node's memory client. Methods may be called concurrently: one operation runs after the other.

    A write or free that is not answered within GIVE_UP seconds fails as UNAVAILABLE, and may still be carried out;
    the client goes on asking for it while it is used, and settle waits for it.
    """

    def __init__(self, sock, incarnation, rack, budget, batches, clock=time.monotonic, sleep=time.sleep):
        """batches asks the Gatekeeper for batches of region slots: machine, how many the node is to have there → all that it has there."""
        self.account, self.borrows = Account(), Borrows()
        self._leaving, self._closed = [], False  # pointers to regions that free_later frees
        self._news, self._freer = threading.Condition(), None
        self._socket, self._now, self._sleep = sock, clock, sleep
        self._ask_batches, self._batches = batches, {}  # by machine
        self._slots_lock = threading.Lock()
        self._incarnation, self._rack = incarnation, rack
        self._max_data = (budget - wire.DSM_SIZE) & ~63
        self._machines = {}
        self._lock = threading.Lock()
        self.unexpected = 0  # datagrams that answered nothing

    def close(self) -> None:
        """Ends the client; what is under way fails."""
        self._socket.close()
        with self._news:
            self._closed = True
            self._news.notify_all()

    def alloc(self, size: int) -> bytes:
        """A region of at least size bytes, all zero, that this node controls: the pointer to its first byte."""
        if not 1 <= size <= layout.MAX_REGION:
            raise Error(layout.BAD_REQUEST, "%d bytes: a region has 1 to %d" % (size, layout.MAX_REGION), "alloc")
        rack = self._rack()
        blades = list(rack.get("memories") or ())
        code = layout.NO_SPACE
        while blades:
            at = random.choices(range(len(blades)), [1 + b["free"] for b in blades])[0]
            pointer, code = self._alloc_at(rack["dsm_prefix"], blades.pop(at)["machine"], size)
            if pointer:
                return pointer
            if code not in (layout.NO_SPACE, layout.UNAVAILABLE):
                break
        raise Error(code, "%d bytes" % size, "alloc", remote=code != layout.UNAVAILABLE)

    def _alloc_at(self, prefix, machine, size):
        """Allocates on one machine: the pointer, or why there is none."""
        with self._slots_lock:  # so that nothing is under way in a batch that is asked about
            for _ in range(TRIES):
                slot, code = self._free_slot(prefix, machine)
                if slot is None:
                    return None, code
                pointer = wire.make_pointer(prefix, machine, *slot)
                self.account.add([wire.region_of(pointer)])
                done = self._run([_Request(layout.OP_ALLOC, wire.with_op(pointer, layout.OP_ALLOC), size)])
                if done.code == layout.OK:
                    return pointer, done.code
                self.account.drop([wire.region_of(pointer)])
                if done.code != layout.NO_SPACE or not done.flags & layout.DSM_SLOT:
                    break
                self._batches[machine].refused(slot[0])
            return None, done.code

    def _free_slot(self, prefix, machine):
        """A slot of a machine and the generation of its next region; or None, and why."""
        batches = self._batches.setdefault(machine, Batches())
        give_up, asks = self._now() + GIVE_UP, list(batches)
        while True:
            while not (slot := batches.take()) and asks:
                number = asks.pop(0)
                at = wire.make_pointer(prefix, machine, number * layout.BATCH_SLOTS, 0)
                done = self._run([_Request(layout.OP_SLOTS, wire.with_op(at, layout.OP_SLOTS), layout.SLOTS_SIZE)])
                if done.code != layout.OK:
                    return None, done.code
                batches.learn(number, done.pieces[0])
            if slot:
                return slot, layout.OK
            asks = batches.add(self._ask_batches(machine, len(batches) + 1))
            if not asks and (not batches.rests or self._now() >= give_up):
                return None, layout.NO_SPACE
            if not asks:
                self._sleep(REST)
                asks = list(batches)

    def lent_by(self, region):
        """The Use of a slot in which the call that is served has lent the node a region, or by which it has a standing lease. NO_USE if it has neither."""
        serving = current()
        by = serving.message.lent_by(region) if serving else wire.NO_USE
        return self.borrows.by(region) if by == wire.NO_USE and not self.account.owns(region) else by

    def read(self, pointer: bytes, length: int) -> bytes:
        """The length bytes that stand at a pointer."""
        by = self.lent_by(wire.region_of(pointer))
        places = range(0, length, self._max_data)

        def request(at):
            return _Request(layout.OP_READ, wire.with_op(wire.add(pointer, at), layout.OP_READ), min(self._max_data, length - at), place=at, by=by)

        done = self._check("read", pointer, lambda: list(map(request, places)), by)
        return b"".join(done.pieces[at] for at in places)

    def write(self, pointer: bytes, data: bytes) -> None:
        """Puts data at a pointer; when this returns, it stands there. While a call that nobody waits for any more lends the region, it waits."""
        data = bytes(data)

        def request(at):
            piece = data[at : at + self._max_data]
            return _Request(layout.OP_WRITE, wire.with_op(wire.add(pointer, at), layout.OP_WRITE), len(piece), piece, at)

        self._check("write", pointer, lambda: list(map(request, range(0, len(data), self._max_data))))

    def free(self, pointer: bytes) -> None:
        """Ends the region that pointer is the first byte of. The node must control it. While a call that nobody waits for any more lends the
        region, it stays, and goes when that is over."""
        if self._check("free", pointer, lambda: [_free(pointer)]).code == layout.OVERLOADED:
            self.free_later([pointer])
        else:
            self.account.drop([wire.region_of(pointer)])

    def free_later(self, pointers):
        """Frees regions by the pointers to their first bytes, each when it is not lent any more. Nobody waits for that."""
        self.account.leave(list(map(wire.region_of, pointers)))
        with self._news:
            self._leaving += pointers
            if self._leaving and self._freer is None and not self._closed:
                self._freer = threading.Thread(target=self._free_leaving, name="bifrost frees", daemon=True)
                self._freer.start()
            self._news.notify_all()

    def _free_leaving(self):
        lent, pause = [], LENT_PAUSE
        while True:
            with self._news:
                self._news.wait_for(lambda: self._leaving or self._closed, pause if lent else None)
                if self._closed:
                    return
                pause = LENT_PAUSE if self._leaving else min(2 * pause, MAX_LENT_PAUSE)
                leaving, self._leaving = lent + self._leaving, []
            try:
                lent = [p for p in leaving if self._run([_free(p)]).code == layout.OVERLOADED]
            except Error:
                return  # the node has ended
            self.account.left(set(map(wire.region_of, leaving)).difference(map(wire.region_of, lent)))

    def settle(self):
        """Waits until it is known what became of each write and free of this node. A node settles before it
        lends a region or hands it over."""
        if not self._run([], lambda: not any(m.open for m in self._machines.values())):
            raise Error(layout.UNAVAILABLE, "a memory blade does not answer", "settle")

    def _check(self, op, pointer, make, by=wire.NO_USE):
        """Carries out the requests that make returns, again while their region is lent. What became of them is OK or, of a free whose region
        is lent by calls that nobody waits for, OVERLOADED."""
        if not wire.is_stored(pointer):
            raise Error(layout.BAD_REQUEST, "%s is not a global pointer" % pointer.hex(), op)
        region, name = wire.region_of(pointer), socket.inet_ntop(socket.AF_INET6, pointer)
        pause, give_up = 0.0, self._now() + GIVE_UP
        while True:
            if by == wire.NO_USE and not self.account.owns(region):
                raise Error(layout.PERMISSION_DENIED, name + " is not this program's: it has freed it or handed it over, or never had it", op)
            done = self._run(make())
            lent = done.code == layout.OVERLOADED  # the switch alone says so
            if lent and self.account.lends(region):
                raise Error(layout.PERMISSION_DENIED, name + " is lent by a call of this program that is not over, or shared", op)
            if done.code == layout.OK or lent and op == "free":
                return done
            if not lent or self._now() >= give_up:
                raise Error(done.code, name, op, remote=done.code != layout.UNAVAILABLE)
            pause = min(max(2 * pause, LENT_PAUSE), MAX_LENT_PAUSE)
            self._sleep(pause)

    def _run(self, requests, until=None):
        """Carries out requests to one machine. With until it waits for that instead, and tells whether it came."""
        with self._lock:
            done, queue = _Operation(), collections.deque(requests)
            done.left = len(queue)
            give_up = self._now() + GIVE_UP
            while not until() if until else done.left:
                under_way = sum(1 for m in self._machines.values() for r in m.open.values() if r.owner is done)
                while queue and under_way < WINDOW and not self._machine(queue[0].to).given_up():
                    request = queue.popleft()
                    request.owner = done
                    self._enter(request)
                    under_way += 1
                now = self._now()
                if now >= give_up:
                    self._abandon(done)
                    break
                if self._wait(min(give_up, self._resend(now))):
                    give_up = self._now() + GIVE_UP
            return done if until is None else until()

    def _abandon(self, done):
        """Ends the wait for a machine that is silent. Reads are forgotten, the rest goes on."""
        done.code, done.left = layout.UNAVAILABLE, 0
        for machine in self._machines.values():
            for request in list(machine.open.values()):
                if request.owner is done:
                    request.owner = None
                    if request.op in _READS:
                        del machine.open[request.number]

    def _machine(self, to):
        return self._machines.setdefault((to[4], to[5]), _Machine())

    def _enter(self, request):
        """Numbers a request and sends it."""
        machine = self._machine(request.to)
        request.number, machine.next = machine.next, machine.next + 1
        machine.open[request.number] = request
        self._transmit(machine, request)

    def _transmit(self, machine, request):
        request.sends += 1
        request.due = self._now() + min(FIRST_TIMEOUT * 2 ** min(request.sends - 1, 8), 1.0)
        packet = wire.Memory(
            flags=request.flags, request=request.number, floor=machine.floor(), incarnation=self._incarnation,
            length=request.length, data=request.data, slot=request.by.slot, number=request.by.number,
        )
        try:
            self._socket.sendto(packet.pack(), (socket.inet_ntop(socket.AF_INET6, request.to), layout.PORT_DSM))
        except OSError as e:
            if self._socket.fileno() < 0:
                raise Error(layout.UNAVAILABLE, "the node has ended", "memory") from e
            # else a loss like any other: it is sent again

    def _resend(self, now):
        """Sends again what is due; tells when the next will be."""
        nearest = now + 1.0
        for machine in self._machines.values():
            for request in machine.open.values():
                if request.settling:
                    continue
                if request.due <= now:
                    self._transmit(machine, request)
                nearest = min(nearest, request.due)
        return nearest

    def _wait(self, until):
        """Takes one datagram in; tells whether an answer came."""
        self._socket.settimeout(max(until - self._now(), 0.0001))
        try:
            b, source = self._socket.recvfrom(65536)
        except TimeoutError:
            return False
        except OSError as e:
            raise Error(layout.UNAVAILABLE, "the node has ended", "memory") from e
        try:
            packet = wire.Memory.parse(b)
        except FormatError:
            self.unexpected += 1
            return False
        return self._receive(socket.inet_pton(socket.AF_INET6, source[0].split("%")[0]), packet)

    def _receive(self, source, packet):
        machine = self._machines.get((source[4], source[5]))
        if machine is None or packet.incarnation != self._incarnation or packet.kind == layout.KIND_REQUEST:
            self.unexpected += 1
            return False
        self._meet(machine, packet)
        heard = False
        for i in range(packet.more + 1):  # one answer may stand for several requests in a row
            request = machine.open.get(packet.request + i)
            if request is None or not _answers(request, source if i == 0 else request.to, packet):
                self.unexpected += 1
            elif packet.kind == layout.KIND_NACK:
                heard = True
                self._denied(machine, request, packet.status)
            elif packet.status != layout.OVERLOADED:  # else it is sent again, later
                heard = True
                self._answered(machine, request, source, packet)
        return heard

    def _meet(self, machine, packet):
        """A machine whose set of copies has changed is sent all again that is not settled."""
        if packet.members == 0 or machine.members and packet.mirror_epoch <= machine.epoch:
            return
        first, machine.epoch, machine.members = machine.members == 0, packet.mirror_epoch, packet.members
        for request in machine.open.values():
            request.fresh()
            if not first and not request.settling:
                self._transmit(machine, request)

    def _denied(self, machine, request, why):
        """The switch has refused a copy of a request. Another copy may get through, or the region may be lost, so the
        machine is asked."""
        if request.op in (layout.OP_ALLOC, layout.OP_READ, layout.OP_WRITE, layout.OP_FREE) and not request.settling:
            request.settling = True
            request.verdict = layout.OVERLOADED if why == layout.OVERLOADED else layout.PERMISSION_DENIED
            self._enter(_Request(layout.OP_SETTLE, wire.with_op(request.to, layout.OP_SETTLE), request.number, asks=request))

    def _answered(self, machine, request, source, packet):
        status = packet.status
        if packet.members and request.op not in _READS:
            status = self._decide(machine, request, packet)
            if status is None:
                return
        if request.asks:
            about = request.asks
            del machine.open[request.number]
            if about.number in machine.open:
                applied = bool(request.applied) if packet.members else packet.flags & layout.DSM_APPLIED
                if applied and status == layout.OK and about.op == layout.OP_ALLOC:  # the switch has not made it the node's
                    self._enter(_free(about.to))
                    applied = False
                self._finish(machine, about, about.verdict if status == layout.OK and not applied else status)
            return
        if request.owner and status == layout.OK and request.op in _READS:
            request.owner.pieces[request.place] = packet.data
        if request.owner and status != layout.OK:
            request.owner.flags |= request.why | packet.flags
        self._finish(machine, request, status)
        if request.op == layout.OP_ALLOC and (request.good if status != layout.OK else request.owner is None):
            # Nobody waits for it, or not all copies have made it.
            self._enter(_free(source))

    def _decide(self, machine, request, packet):
        """What all copies of a machine have answered to a request, None while one is missing."""
        if packet.mirror_epoch != machine.epoch:
            return None
        final = request.flags & layout.DSM_FINAL
        applied = packet.flags & layout.DSM_APPLIED
        if request.asks and final and packet.status == layout.OK and not packet.flags & (layout.DSM_FINAL | layout.DSM_APPLIED):
            return None  # the answer to what was asked before
        request.heard.add(packet.copy)
        if request.asks and applied:
            request.applied.add(packet.copy)
        if packet.status != layout.OK:
            request.bad, request.why = packet.status, packet.flags
        else:
            request.good = True
        if len(request.heard) < machine.members:
            return None
        if request.asks:
            return self._settled(machine, request, packet)
        if request.good and request.bad in (layout.NOT_FOUND, layout.STALE):
            return layout.OK if request.op == layout.OP_FREE else request.bad
        return request.bad

    def _settled(self, machine, request, packet):
        """What all copies have answered to a settle: only if none has carried the request out may it be final."""
        if len(request.applied) == machine.members or request.bad != layout.OK and not request.applied:
            return request.bad
        if not request.applied and packet.flags & layout.DSM_FINAL:
            return layout.OK
        if not request.applied:
            request.flags |= layout.DSM_FINAL
        undecided, about = bool(request.applied), request.asks
        request.fresh()
        if not undecided:
            self._transmit(machine, request)
        elif about.verdict == layout.OVERLOADED and not request.flags & layout.DSM_FINAL and about.number in machine.open:
            # The region is lent: the other copy gets the request when that is over.
            del machine.open[request.number]
            about.settling, about.due = False, self._now() + MAX_LENT_PAUSE
            about.fresh()
        return None

    def _finish(self, machine, request, code):
        machine.open.pop(request.number, None)
        for other in [r for r in machine.open.values() if r.asks is request]:
            del machine.open[other.number]
        if request.owner:
            request.owner.left -= 1
            if code != layout.OK and request.owner.code == layout.OK:
                request.owner.code = code


def _free(pointer):
    return _Request(layout.OP_FREE, wire.with_op(pointer, layout.OP_FREE))


def _answers(request, source, packet):
    """Whether a datagram can be the answer to a request."""
    if packet.kind == layout.KIND_NACK or packet.status != layout.OK:
        return source == request.to
    if request.op == layout.OP_ALLOC and packet.length != request.length:
        return False
    if request.op in _READS and len(packet.data) != request.length:
        return False
    return source == request.to
