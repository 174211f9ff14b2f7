"""Services that are exactly once and have state: the handlers are here, the rest is in `bifrost host`, which has started this process.

    class Bank:
        def deposit(self, account, amount):
            accounts = host.state()
            balance = int(accounts.get(account, b"0")) + amount
            accounts[account] = b"%d" % balance
            return balance

    host.serve(host.Service("Bank", bank.Bank.Processor, Bank(), idl=open("bank.thrift").read(), state=True))

    bifrost host -- python3 bank_service.py

What a handler needs of the world it gets here, as a handler in Go gets it from package rpc: state, effect, now, random, client. When its process dies, an exactly-once
call runs again in the next one. It must then do the same, and gets the same from these. A handler asks for one thing at a time, in its own thread or task.

Methods may be coroutines: they run in an event loop of this module. There, `await host.run(f, *args)` is for what waits, such as an operation of the state;
host.aclient and host.aeffect are client and effect for coroutines.

docs/wire.md has the protocol ("Services in another language").
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import datetime
import functools
import importlib.metadata
import inspect
import json
import logging
import os
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, MutableMapping
from typing import Any

from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TException
from thrift.transport.TTransport import TMemoryBuffer

from . import layout
from .errors import Error

_logger = logging.getLogger("bifrost")

_HEAD = struct.Struct(">IBI")
_NUMBER = struct.Struct(">I")
_ONEWAY, _NEVER_BEGAN, _REMOTE = 1, 1, 2
_POLICIES = {"none": layout.POLICY_NONE, "recover": layout.POLICY_RECOVER, "fate-share": layout.POLICY_FATE_SHARE, "tainted": layout.POLICY_TAINTED, None: layout.HOST_NO_POLICY}


class Service:
    """A service that is to be served. processor is the class Processor that Thrift has generated, handler what has the methods, plain ones or
    coroutines. idl is the text of the Thrift file, for callers without generated code, such as the ingress; what it says of policies counts. With state the service runs one
    call at a time; else workers run at a time, and queue wait. policies are those of methods, by name, and max_failures after how many deaths of this process
    a call is given up; "" stands for all other methods. 0 is the host's default."""

    def __init__(self, name: str, processor: type, handler: Any, *, idl: str = "", state: bool = False, workers: int = 0, queue: int = 0,
                 policies: Mapping[str, str] | None = None, max_failures: Mapping[str, int] | None = None) -> None:
        self.name, self.idl, self.state, self.workers, self.queue = name, idl, state, workers, queue
        self.policies, self.max_failures = dict(policies or {}), dict(max_failures or {})
        self._processor = processor(_Guarded(handler))

    def hello(self) -> dict[str, Any]:
        """What the host is told."""
        return {"name": self.name, "methods": sorted(self._processor._processMap), "idl": self.idl, "state": self.state, "workers": self.workers,
                "queue": self.queue, "policies": self.policies, "max_failures": self.max_failures}

    def process(self, message: bytes) -> bytes:
        """Runs a call; returns the message of the answer, b"" of a one-way."""
        out = TMemoryBuffer()
        self._processor.process(TBinaryProtocol(TMemoryBuffer(message), strictRead=True), TBinaryProtocol(out, strictWrite=True))
        return out.getvalue()


class Call:
    """A call that is being served. id names it as `bifrost calls` does, the same in each run of an exactly-once call; caller is the address of the node that calls;
    headers are the call's. deadline is in the seconds of time.monotonic, None for none; canceled is set when nobody waits for the answer any more."""

    def __init__(self, connection: _Connection, number: int, body: bytes) -> None:
        f = _Fields(body)
        flags, timeout = f.byte(), f.number()
        self.oneway = bool(flags & _ONEWAY)
        self.deadline = time.monotonic() + timeout / 1000 if timeout else None
        self.service, self.id, self.caller = f.text(), f.text(), f.text()
        self.headers = {f.text(): f.text() for _ in range(f.number())}
        self.canceled = threading.Event()
        self._message = f.rest
        self._connection, self._number = connection, number
        self._results: queue.SimpleQueue[tuple[int, bytes]] = queue.SimpleQueue()  # of the host
        self._asking = threading.Lock()  # held while one thing is asked for
        self._broken: str | None = None  # why the handler has not come to an end of its own
        self._over = False

    def _ask(self, kind: int, *body: bytes) -> tuple[int, bytes]:
        """Asks the host for something; returns the frame that it answers with. The caller asks alone."""
        if self._over:
            raise Error(layout.BAD_REQUEST, "the handler of this call has returned")
        self._connection.send(kind, self._number, *body)
        frame = self._results.get()
        if frame[0] == 0:
            raise Stop
        return frame

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """For one thing at a time, else an execution that runs again would ask in another order."""
        if not self._asking.acquire(blocking=False):
            raise Error(layout.BAD_REQUEST, "a call asks for one thing at a time: wait for the state, a call or an effect before the next")
        try:
            yield
        finally:
            self._asking.release()

    def _get(self, kind: int, *body: bytes) -> bytes:
        """Asks for something, and returns the result."""
        with self._alone():
            return _result(self._ask(kind, *body)[1])


class Stop(BaseException):
    """Ends the threads of handlers when the host is gone. Nothing must come of what they do."""


def _result(body: bytes) -> bytes:
    code, flags = body[0], body[1]
    if code != layout.OK:
        raise Error(code, body[2:].decode(errors="replace"), remote=bool(flags & _REMOTE), never_began=bool(flags & _NEVER_BEGAN))
    return body[2:]


class _Fields:
    """The fields of a body that are still to be read."""

    def __init__(self, body: bytes) -> None:
        self.rest = body

    def take(self, n: int) -> bytes:
        if n > len(self.rest):
            raise ValueError("a field of %d bytes, and %d are left" % (n, len(self.rest)))
        taken, self.rest = self.rest[:n], self.rest[n:]
        return taken

    def byte(self) -> int:
        return self.take(1)[0]

    def number(self) -> int:
        return int(_NUMBER.unpack(self.take(4))[0])

    def text(self) -> str:
        return self.take(self.number()).decode(errors="surrogateescape")


def _text(s: str | bytes) -> bytes:
    b = s if isinstance(s, bytes) else s.encode(errors="surrogateescape")
    return _NUMBER.pack(len(b)) + b


_serving: contextvars.ContextVar[Call | None] = contextvars.ContextVar("bifrost_host", default=None)  # by this thread, or task


def current() -> Call:
    """The call that this thread, or task, serves. It fails as BAD_REQUEST outside of handlers."""
    call = _serving.get()
    if call is None:
        raise Error(layout.BAD_REQUEST, "this thread, or task, serves no call: only a handler has state, effects and calls that are part of its execution")
    return call


class State(MutableMapping[str, bytes]):
    """The state of the service whose call is served: values by keys, which are kept in order. What a call sets is kept together with its answer, or not at
    all. Each operation asks the host; a value that is needed often is best kept in a variable of the handler."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def __getitem__(self, key: str) -> bytes:
        got = self._call._get(layout.HOST_GET, _key(key))
        if got[0] == 0:
            raise KeyError(key)
        return got[1:]

    def __setitem__(self, key: str, value: bytes) -> None:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise TypeError("a value of the state is bytes, not %s" % type(value).__name__)
        most = self._call._connection.max_message
        if len(value) > most:
            raise Error(layout.BAD_REQUEST, "a value of %d bytes: the host takes %d (--max-message)" % (len(value), most))
        self._call._get(layout.HOST_SET, _text(_key(key)), bytes(value))

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._call._get(layout.HOST_DELETE, _key(key))

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_from(""))

    def __len__(self) -> int:
        return len(self.keys_from(""))

    def keys_from(self, prefix: str) -> list[str]:
        """The keys that begin with a text, in order."""
        f = _Fields(self._call._get(layout.HOST_KEYS, _key(prefix)))
        keys = []
        while f.rest:
            keys.append(f.text())
        return keys


def _key(key: str) -> bytes:
    if not isinstance(key, str):
        raise TypeError("a key is a str, not %s" % type(key).__name__)
    b = key.encode()
    if len(b) > layout.HOST_MAX_KEY:
        raise Error(layout.BAD_REQUEST, "a key of %d bytes: want %d at most" % (len(b), layout.HOST_MAX_KEY))
    return b


def state() -> State:
    """The state of the service whose call is served, which must have one (Service(state=True))."""
    return State(current())


def now() -> datetime.datetime:
    """The time of day, in UTC. An exactly-once call that runs again sees the same."""
    ns = int.from_bytes(current()._get(layout.HOST_NOW), "big", signed=True)
    return datetime.datetime.fromtimestamp(ns // 10**9, datetime.timezone.utc).replace(microsecond=ns % 10**9 // 1000)


def random(n: int) -> bytes:
    """n random bytes, from the system's secure source. An exactly-once call that runs again sees the same. There are at most layout.HOST_MAX_RANDOM."""
    if not 0 <= n <= layout.HOST_MAX_RANDOM:
        raise Error(layout.BAD_REQUEST, "%d random bytes: want 0 to %d" % (n, layout.HOST_MAX_RANDOM))
    return current()._get(layout.HOST_RANDOM, _NUMBER.pack(n))


def effect(key: str, f: Callable[[], bytes | None]) -> bytes:
    """Does something outside of the rack, and returns what f does, as bytes. In an exactly-once call the result is kept, and f does not run again, unless this process
    dies before the call's next step is kept: so f runs at least once, and should pass the key on, for the other side to tell a repetition. f must not use the state,
    or another function of this module. What f raises is kept as well, and is raised as Error: with its code, or else APPLICATION."""
    call = current()
    with call._alone():
        kind, body = call._ask(layout.HOST_EFFECT, _key(key))
        if kind == layout.HOST_RUN:
            cut: BaseException | None = None  # what has cut f off
            try:
                body = _outcome(call, f())
            except Stop:
                raise
            except BaseException as e:
                body = _failed(e)
                cut = None if isinstance(e, Exception) else e
            kind, body = call._ask(layout.HOST_EFFECT_DONE, body)
            if cut is not None:
                raise cut
        return _result(body)


async def aeffect(key: str, f: Callable[[], Coroutine[Any, Any, bytes | None]]) -> bytes:
    """effect, where f is a coroutine function. If the task is cancelled meanwhile, f goes on, and the call is answered after it."""
    loop = asyncio.get_running_loop()
    done: bytes = await run(effect, key, lambda: asyncio.run_coroutine_threadsafe(f(), loop).result())
    return done


def _outcome(call: Call, result: bytes | None) -> bytes:
    if not isinstance(result, (bytes, bytearray, type(None))):
        raise TypeError("an effect returns bytes or None, not %s" % type(result).__name__)
    result = bytes(result or b"")
    if len(result) > call._connection.max_message:
        raise Error(layout.BAD_REQUEST, "an effect's result of %d bytes: the host takes %d (--max-message)" % (len(result), call._connection.max_message))
    return bytes([layout.OK]) + result


def _failed(e: BaseException) -> bytes:
    if isinstance(e, Error) and e.code not in (layout.OK, layout.DECLARED):
        return bytes([e.code]) + e.reason.encode()[:4096]
    return bytes([layout.APPLICATION]) + repr(e).encode(errors="replace")[:4096]


def log(text: str, level: int = logging.INFO) -> None:
    """Writes a line to the log of the host, with the name of the call that is served. Each run of a call writes it. The level is one of module logging."""
    call = current()
    number = min(max(level // 10 - 1, 0), 3)
    call._connection.send(layout.HOST_LOG, call._number, bytes([number]), text.encode(errors="replace")[: layout.HOST_MAX_BESIDE // 2])


def client(service: str, policy: str | None = None, timeout: float | None = None) -> ClientProtocol:
    """A protocol for a generated client, whose calls are part of the call that is served: when that runs again, it gets the same answers. policy is "none",
    "recover", "fate-share" or "tainted", by default what the rack gives to the method; timeout is in seconds, for each call."""
    if policy not in _POLICIES:
        raise Error(layout.BAD_REQUEST, "policy %r: want none, recover, fate-share or tainted" % policy)
    return ClientProtocol(current(), service, _POLICIES[policy], timeout)


class ClientProtocol(TBinaryProtocol):
    """The protocol of a generated client within a handler. headers are those of each call from now on."""

    def __init__(self, call: Call, service: str, policy: int, timeout: float | None) -> None:
        super().__init__(TMemoryBuffer(), strictRead=True, strictWrite=True)
        self._call, self._service, self._policy, self.timeout = call, service, policy, timeout
        self.headers: dict[str, str] = {}
        self._kind = 0
        self._fresh(b"")

    def writeMessageBegin(self, name: str, type: int, seqid: int) -> None:
        self._fresh(b"")
        self._kind = type
        super().writeMessageBegin(name, type, seqid)

    def _fresh(self, content: bytes) -> None:
        self.trans = TMemoryBuffer(content) if content else TMemoryBuffer()
        self.trans.flush = self._flush

    def _flush(self) -> None:
        message = self.trans.getvalue()
        most = self._call._connection.max_message
        if len(message) > most:
            raise Error(layout.BAD_REQUEST, "a message of %d bytes: the host takes %d (--max-message)" % (len(message), most))
        timeout = 0 if self.timeout is None else min(max(1, int(self.timeout * 1000)), 2**32 - 1)
        headers = b"".join(_text(k) + _text(v) for k, v in self.headers.items())
        self._fresh(self._call._get(layout.HOST_INVOKE, bytes([self._policy]), _NUMBER.pack(timeout), _text(self._service),
                                    _NUMBER.pack(len(self.headers)), headers, message))


def aclient(make: type, service: str, policy: str | None = None, timeout: float | None = None) -> Any:
    """A client whose methods are those of a generated one, as coroutines. The rest is as in client."""
    return _Awaited(lambda: make(client(service, policy, timeout)))


class _Awaited:
    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        def call(*args: Any) -> Any:
            return getattr(self._make(), method)(*args)

        async def awaited(*args: Any) -> Any:
            return await run(call, *args)

        return awaited


async def run(f: Callable[..., Any], *args: Any) -> Any:
    """Awaits, in a coroutine of a handler, a function that waits, such as an operation of the state: await host.run(accounts.get, "1")."""
    loop, context = asyncio.get_running_loop(), contextvars.copy_context()
    future: asyncio.Future[Any] = loop.create_future()

    def settle(settled: Callable[[Any], None], value: Any) -> None:
        if not future.done():  # else the task has been cancelled
            settled(value)

    def work() -> None:
        try:
            result = context.run(f, *args)
        except BaseException as e:
            loop.call_soon_threadsafe(settle, future.set_exception, e)
        else:
            loop.call_soon_threadsafe(settle, future.set_result, result)

    _waiting.run(work)
    return await future


class _Guarded:
    """The methods of a handler, as a generated processor calls them. What they raise that is none of Thrift's exceptions does not come to the caller as if
    the handler had meant it: the host takes back what the handler has made of the state."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    def __getattr__(self, method: str) -> Callable[..., Any]:
        f = getattr(self._handler, method)

        def call(*args: Any) -> Any:
            try:
                result = f(*args)
                return _await(result) if inspect.isawaitable(result) else result
            except (TException, Stop):
                raise
            except BaseException as e:
                current()._broken = repr(e)
                _logger.exception("%s.%s: the handler has failed", current().service, method)
                raise

        return call


_loop: asyncio.AbstractEventLoop | None = None
_loop_lock = threading.Lock()


def _await(coroutine: Awaitable[Any]) -> Any:
    """Runs a coroutine of a handler in the event loop, and waits for it. The task has the context of this thread."""
    global _loop
    with _loop_lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="bifrost loop", daemon=True).start()

    async def awaited() -> Any:
        return await coroutine

    return asyncio.run_coroutine_threadsafe(awaited(), _loop).result()


class _Pool:
    """Threads that run functions: as many as are needed, since each may wait for others, and an idle one is used again. They do not keep the process."""

    def __init__(self, name: str) -> None:
        self._name, self._work, self._idle = name, queue.SimpleQueue[Callable[[], None]](), threading.Semaphore(0)

    def run(self, f: Callable[[], None]) -> None:
        self._work.put(f)
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._loop, name=self._name, daemon=True).start()

    def _loop(self) -> None:
        while True:
            self._work.get()()
            self._idle.release()


_waiting = _Pool("bifrost wait")  # threads in which functions wait for coroutines


class _Connection:
    """The stream between this process and its host."""

    def __init__(self, sock: socket.socket, services: tuple[Service, ...], name: str) -> None:
        self._sock, self._in, self._sending = sock, sock.makefile("rb"), threading.Lock()
        self._services = {s.name: s for s in services}
        self._calls: dict[int, Call] = {}
        self._lock = threading.Lock()  # over the calls
        self._threads = _Pool("bifrost call")
        self._name = name
        self.max_message = 0
        self.node, self.address = "", ""

    def send(self, kind: int, call: int, *body: bytes) -> None:
        """Sends a frame. If the host is gone, the thread ends."""
        whole = b"".join(body)
        head = _HEAD.pack(len(whole) + 5, kind, call)
        try:
            with self._sending:
                self._sock.sendall(head + whole if len(whole) < 1 << 16 else head)
                if len(whole) >= 1 << 16:
                    self._sock.sendall(whole)
        except OSError as e:
            raise Stop from e

    def read(self) -> tuple[int, int, bytes] | None:
        """The next frame; None at the end. EOFError if the stream ends within one."""
        head = self._in.read(_HEAD.size)
        if not head:
            return None
        if len(head) < _HEAD.size:
            raise EOFError("the host has gone within a frame")
        length, kind, call = _HEAD.unpack(head)
        if length < 5 or self.max_message and length > self.max_message + layout.HOST_MAX_BESIDE + 5:
            raise EOFError("the host has sent a frame of %d bytes" % length)
        body = self._in.read(length - 5)
        if len(body) < length - 5:
            raise EOFError("the host has gone within a frame")
        return kind, call, body

    def serve(self, ready: Callable[[str], None] | None) -> None:
        """Says what is served, and serves until the host is gone."""
        hello = {"version": layout.HOST_VERSION, "speaks": "bifrost-python " + _version(), "name": self._name, "services": [s.hello() for s in self._services.values()]}
        try:
            self.send(layout.HOST_HELLO, 0, json.dumps(hello).encode())
            while (frame := self.read()) is not None:
                kind, number, body = frame
                if kind == layout.HOST_READY and ready is not None:
                    ready(self.address)
                else:
                    self._take(kind, number, body)
        except (Stop, ConnectionError, EOFError) as e:
            _logger.debug("the host is gone: %r", e)
        finally:
            self._in.close()
            with self._lock:
                calls = list(self._calls.values())
            for call in calls:
                call.canceled.set()
                call._results.put((0, b""))

    def _take(self, kind: int, number: int, body: bytes) -> None:
        if kind == layout.HOST_WELCOME:
            welcome = json.loads(body)
            if welcome["version"] != layout.HOST_VERSION:
                raise RuntimeError("the host speaks version %d of the protocol, this package version %d" % (welcome["version"], layout.HOST_VERSION))
            self.max_message, self.node, self.address = welcome["max_message"], welcome["node"], welcome["address"]
            return
        if kind == layout.HOST_CALL:
            call = Call(self, number, body)
            with self._lock:
                self._calls[number] = call
            self._threads.run(functools.partial(self._serve, call))
            return
        with self._lock:
            known = self._calls.get(number)
        if known is None:
            return  # a cancel that comes when the call has been answered
        if kind == layout.HOST_CANCEL:
            known.canceled.set()
        elif kind in (layout.HOST_RESULT, layout.HOST_RUN):
            known._results.put((kind, body))

    def _serve(self, call: Call) -> None:
        """Serves a call, in a thread."""
        _serving.set(call)
        try:
            kind, body = self._outcome(call)
            with call._asking:  # another thread of the handler's may wait for a result
                call._over = True
            with self._lock:
                del self._calls[call._number]
            self.send(kind, call._number, body)
        except Stop:
            pass
        finally:
            _serving.set(None)

    def _outcome(self, call: Call) -> tuple[int, bytes]:
        """Runs the handler; returns what the host is told."""
        try:
            answer = self._services[call.service].process(call._message)
        except Error as e:
            code = e.code if e.code not in (layout.OK, layout.DECLARED) else layout.APPLICATION
            return layout.HOST_FAIL, bytes([code]) + e.reason.encode(errors="replace")[:4096]
        except Stop:
            raise
        except BaseException as e:
            if call._broken is None:
                _logger.exception("%s: a call has failed", call.service)
            return layout.HOST_BROKEN, (call._broken or repr(e)).encode(errors="replace")[:4096]
        if call._broken is not None:
            return layout.HOST_BROKEN, call._broken.encode(errors="replace")[:4096]
        if len(answer) > self.max_message:
            return layout.HOST_FAIL, bytes([layout.BAD_REQUEST]) + b"an answer of %d bytes: the host takes %d (--max-message)" % (len(answer), self.max_message)
        return layout.HOST_ANSWER, answer


def _version() -> str:
    try:
        return importlib.metadata.version("bifrost-rack")
    except importlib.metadata.PackageNotFoundError:
        return "from its sources"


def serve(*services: Service, name: str = "", ready: Callable[[str], None] | None = None, sock: socket.socket | None = None) -> None:
    """Serves services until the host is gone, then returns: the process must end then. name is what people call the node, unless a deployment has started the host. ready is called, with the
    address of the node, when the rack routes calls to it. sock is the stream to the host, for tests; by default the one that the environment names."""
    if sock is None:
        fd = os.environ.get(layout.HOST_VARIABLE, "")
        if not fd.isdigit():
            raise Error(layout.BAD_REQUEST, "this process is not the child of a host: start it with bifrost host -- %s" % " ".join(sys.argv), "serve")
        sock = socket.socket(fileno=int(fd))
        sock.set_inheritable(False)  # what a handler starts must not keep the host waiting
    if not services or len({s.name for s in services}) < len(services):
        raise Error(layout.BAD_REQUEST, "want one service at least, each with a name of its own", "serve")
    with sock:
        _Connection(sock, services, name or os.path.basename(sys.argv[0])).serve(ready)
