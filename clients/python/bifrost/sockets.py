"""UDP sockets as the rack wants them."""

import socket

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
