"""A node in Python that reads what a node in Go shares with it, and shares a value of its own. Its test says what comes next, by lines of JSON."""

import json
import sys

from arrays import Arrays
from bifrost.ttypes import GlobalPointer, Lease
from thrift.Thrift import TType

import bifrost
from bifrost import refs

BINARY = TType.STRING, "BINARY"


def hear():
    return json.loads(sys.stdin.readline())


def say(**what):
    print(json.dumps(what), flush=True)


def code(f, *args, **named):
    """What it fails with; 0 if it does not."""
    try:
        f(*args, **named)
    except bifrost.Error as e:
        return e.code
    return 0


with bifrost.join("shares") as node:
    say(address=node.address)

    given = hear()
    lease = Lease(given["length"], bytes.fromhex(given["address"]), given["slot"], given["number"])
    text = refs.borrow(node, BINARY, lease)
    arrays = Arrays.Client(node.client("Arrays", policy="none", timeout=60))
    passed = arrays.incrementRef(GlobalPointer(lease.address), lease.length, 1).address
    say(text=text.load().hex(), passed=node.memory.read(passed, lease.length).hex(), writes=code(node.memory.write, lease.address, b"x"))
    node.memory.free(passed)

    with_whom = hear()  # the lease has ended
    say(late=code(text.load), refused=code(arrays.incrementRef, GlobalPointer(lease.address), lease.length, 1))
    text.free()

    mine = refs.put(node, BINARY, b"of a node in Python")
    lease = mine.share(with_whom["owner"], timeout=60)
    other = mine.share(with_whom["other"], timeout=60)
    say(length=lease.length, address=lease.address.hex(), slot=lease.slot, number=lease.number)

    hear()  # it is read
    short = code(mine.unshare, lease, timeout=0.1)
    mine.unshare(lease, timeout=60)
    say(short=short, frees=code(mine.free))
    mine.unshare(timeout=60)
    say(frees=code(mine.free), nobody=code(refs.put(node, BINARY, b"x").share, "fd00:b1f0:0:2::ffff", timeout=60))
