"""Bifröst for Python: join a rack, call services, serve services, share memory by reference.

    with bifrost.join("adder") as node:
        client = Counter.Client(node.client("Counter", timeout=10))
        total = client.add(0, b"\\x01")

It needs Debian's python3-thrift (or any Thrift for Python) and Python 3.10 or later, on Linux. Docs: docs/wire.md has
the protocols. What it does: join, calls of policy "none" and "recover" as a plain client, services for calls of policy
"none", messages of any size, memory (alloc, read, write, free), values by reference, which are read in place (refs), and standing leases. What it
does not: exactly-once executions and durable mains. So the rack sends such a program no exactly-once calls: to callers it is
as if nobody served the method. bifrost.host is for services that are exactly once and have state: `bifrost host` runs the program then.
"""

from . import layout, refs
from .errors import Error
from .node import Node, join
from .service import current

__all__ = ["Error", "Node", "current", "join", "layout", "refs"]
