"""The one error of the rack's calls and memory operations."""

from thrift.transport.TTransport import TTransportException

from . import layout


def name_of(code: int) -> str:
    """What people call an error code."""
    return layout.CODE_NAMES[code] if code < len(layout.CODE_NAMES) else "code %d" % code


class Error(TTransportException):
    """What a call or a memory operation fails with.

    code is one of the numbers in bifrost.layout, such as layout.UNAVAILABLE. remote says that the other side
    (switch, Gatekeeper, callee, memory blade) has reported the error; never_began that a
    call certainly did not begin to run. It is a TTransportException, so programs
    that were written for Thrift over TCP find it where they look for broken connections, and generated processors
    let it pass, so that a handler's Error keeps its code.
    """

    code: int
    reason: str
    remote: bool
    never_began: bool

    def __init__(self, code: int, message: str = "", op: str = "", remote: bool = False, never_began: bool = False) -> None:
        text = ": ".join(s for s in (op, name_of(code), message) if s)
        kind = self.TIMED_OUT if code == layout.DEADLINE_EXCEEDED else self.UNKNOWN
        super().__init__(type=kind, message=text + (" (remote)" if remote else ""))
        self.code = code
        self.reason = message
        self.remote = remote
        self.never_began = never_began


class FormatError(ValueError):
    """A packet that is foreign, truncated or inconsistent. It is counted and dropped."""
