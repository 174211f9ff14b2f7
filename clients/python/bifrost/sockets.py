"""UDP sockets as the rack wants them."""

import select
import socket
import struct
import threading

from . import layout

_SO_RCVBUFFORCE, _SO_SNDBUFFORCE = 33, 32  # as Linux numbers them; Python has no names for these
BUFFER = 8 << 20  # bytes asked for in each direction


def prepare(s):
    """Makes a socket that the blade's daemon has made one of this program's: it blocks, and has room for large messages."""
    s.setblocking(True)
    for force, plain in ((_SO_RCVBUFFORCE, socket.SO_RCVBUF), (_SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        try:
            s.setsockopt(socket.SOL_SOCKET, force, BUFFER)
        except OSError:  # without CAP_NET_ADMIN the kernel's limits apply
            s.setsockopt(socket.SOL_SOCKET, plain, BUFFER)
    return s


class Relayed:
    """An endpoint of a rack in one process: a stream of frames takes the place of a UDP socket. It has the methods of one that
    this package uses. One thread at a time may receive; any may send."""

    _HEADER = struct.Struct(layout.RELAY_FORMAT)

    def __init__(self, stream):
        self._stream, self._lock, self._came = stream, threading.Lock(), bytearray()
        self.fileno, self.close, self.getsockopt = stream.fileno, stream.close, stream.getsockopt
        self.settimeout, self.setblocking = stream.settimeout, stream.setblocking
        stream.setblocking(True)

    def recvfrom(self, _):
        """The next datagram, and where it is from. What has come of one stays when the stream has no more for now."""
        while True:
            if len(self._came) >= self._HEADER.size:
                size, port, address = self._HEADER.unpack_from(self._came)
                end = self._HEADER.size + size
                if len(self._came) >= end:
                    datagram = bytes(self._came[self._HEADER.size : end])
                    del self._came[:end]
                    return datagram, (socket.inet_ntop(socket.AF_INET6, address), port, 0, 0)
            more = self._stream.recv(1 << 17)
            if not more:
                raise OSError("the daemon has closed the endpoint")
            self._came += more

    def sendto(self, datagram, to):
        """Sends a datagram whole; it waits while the daemon is behind."""
        rest = memoryview(self._HEADER.pack(len(datagram), to[1], socket.inet_pton(socket.AF_INET6, to[0])) + bytes(datagram))
        with self._lock:
            while rest:
                try:
                    rest = rest[self._stream.send(rest) :]
                except (BlockingIOError, TimeoutError):
                    select.select([], [self._stream], [], 1)

    def sendmsg(self, parts, _ancillary, _flags, to):
        """Sends the parts as one datagram."""
        self.sendto(b"".join(parts), to)
