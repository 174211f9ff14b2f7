"""UDP sockets as the rack wants them."""

import socket

_IPV6_FREEBIND = 78  # as Linux numbers them; Python has no names for these
_SO_RCVBUFFORCE, _SO_SNDBUFFORCE = 33, 32
BUFFER = 8 << 20  # bytes asked for in each direction


def bind(address, port):
    """A socket for one address, which need not be the machine's yet: the blade's daemon adds it."""
    s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    try:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        s.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_DONTFRAG, 1)  # a packet too large is an error
        for force, plain in ((_SO_RCVBUFFORCE, socket.SO_RCVBUF), (_SO_SNDBUFFORCE, socket.SO_SNDBUF)):
            try:
                s.setsockopt(socket.SOL_SOCKET, force, BUFFER)
            except OSError:  # without CAP_NET_ADMIN the kernel's limits apply
                s.setsockopt(socket.SOL_SOCKET, plain, BUFFER)
        s.bind((address, port))
    except OSError:
        s.close()
        raise
    return s
