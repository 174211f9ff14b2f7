#!/usr/bin/python3
"""The service Arrays of examples/arrays in Python, by value and by reference, until SIGTERM.

    thrift --gen py -out DIR examples/arrays/arrays.thrift
    PYTHONPATH=clients/python:DIR /usr/bin/python3 clients/python/examples/arrays_server.py
"""

import signal
import threading

from arrays import Arrays
from arrays.ttypes import LengthMismatch
from bifrost.ttypes import GlobalPointer

import bifrost


class Handler:
    """Adds bytes modulo 256, as examples/arrays/service does in Go."""

    def __init__(self, memory):
        self._memory = memory

    def echo(self, data):
        return data

    def increment(self, data, delta):
        return bytes((b + delta) % 256 for b in data)

    def add(self, a, b):
        if len(a) != len(b):
            raise LengthMismatch(len(a), len(b))
        return bytes((x + y) % 256 for x, y in zip(a, b))

    def echoRef(self, data, length):
        return self._store(self._load(data, length))

    def incrementRef(self, data, length, delta):
        return self._store(self.increment(self._load(data, length), delta))

    def addRef(self, a, aLength, b, bLength):
        if aLength != bLength:
            raise LengthMismatch(aLength, bLength)
        return self._store(self.add(self._load(a, aLength), self._load(b, bLength)))

    def _load(self, pointer, length):
        return self._memory.read(pointer.address, length)

    def _store(self, data):
        p = self._memory.alloc(max(1, len(data)))
        self._memory.write(p, data)
        return GlobalPointer(p)


def main():
    stop = threading.Event()
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, lambda *_: stop.set())
    with bifrost.join("arrays-python") as node:
        node.export("Arrays", Arrays.Processor(Handler(node.memory)))
        print("Arrays is served by", node.address, flush=True)
        while not stop.wait(0.2) and not node.done.is_set():
            pass


main()
