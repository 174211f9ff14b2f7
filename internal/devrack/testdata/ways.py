"""A node in Python that serves a stage of examples/pipeline by reference, and calls one in Go. It counts the regions that its values take. Its test says what comes
next, by lines of JSON."""

import json
import sys

from pipeline import Stage

import bifrost
from bifrost import refs

MARKS = {"run": ["text", "return"]}


class Reads:
    """A stage that reads all of its text, or a byte, and returns so many bytes."""

    def __init__(self, whole, size):
        self.whole, self.size = whole, size

    def run(self, text):
        text.load() if self.whole else text.open()[7]
        return b"p" * self.size


def hear():
    return json.loads(sys.stdin.readline())


def say(**what):
    print(json.dumps(what), flush=True)


def counts(node):
    """The regions that a node has allocated, which may be read and cleared."""
    made, alloc = [], node.memory.alloc
    node.memory.alloc = lambda size: made.append(size) or alloc(size)
    return made


with bifrost.join("wide") as wide, bifrost.join("narrow", max_message=100000) as narrow:
    made = counts(wide), counts(narrow)
    for node, name in (wide, "Wide"), (narrow, "Narrow"):
        for kind, whole, size in ("Whole", True, 200000), ("Part", False, 1):
            node.export(name + kind, refs.processor(Stage.Processor, Reads(whole, size), node, MARKS))
    say()

    hear()  # they have been called
    say(regions=[len(m) for m in made])

    for node, regions in zip((wide, narrow), made):
        for name in "GoWhole", "GoPart", "GoNarrow":
            stage = refs.client(Stage.Client, MARKS)(node.client(name, policy="none", timeout=60))
            taken = []
            for size in 200000, 4 << 20, 4 << 20, 4 << 20:
                regions.clear()
                with stage.run(b"g" * size) as back:
                    assert len(back) == 200000, len(back)
                taken.append(len(regions))
            say(regions=taken)
