#!/usr/bin/python3
"""The feed of examples/feed in Python: a timeline of megabytes, written as its posts come, of which a reader reads what it shows.

    thrift --gen py -out DIR examples/feed/feed.thrift
    bifrost gen --python examples/feed/feed.thrift --out DIR
    PYTHONPATH=clients/python:DIR /usr/bin/python3 clients/python/examples/feed_pages.py serve POSTS
    PYTHONPATH=clients/python:DIR /usr/bin/python3 clients/python/examples/feed_pages.py read FROM COUNT
"""

import signal
import sys
import threading

from feed import Feed, feed_bifrost
from feed.ttypes import Post

import bifrost

MARKS = feed_bifrost.MARKS["Feed"]  # what feed.thrift marks with (bifrost.ref)


class Handler:
    """Posts that are made up. There is never more than one of them, and some of the list's end, in the program's own memory."""

    def __init__(self, posts):
        self._posts = posts

    def timeline(self):
        for n in range(self._posts, 0, -1):
            yield Post(n, "user %d" % (n % 7), "This is post %d." % n, bytes([n % 256]) * 10240)


def serve(posts):
    stop = threading.Event()
    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, lambda *_: stop.set())
    with bifrost.join("feed-python") as node:
        node.export("Feed", bifrost.refs.processor(Feed.Processor, Handler(posts), node, MARKS))
        print("%d posts are served by %s" % (posts, node.address), flush=True)
        while not stop.wait(0.2) and not node.done.is_set():
            pass


def read(first, count):
    """Prints a page; the pictures are not moved."""
    with bifrost.join("feed-reader-python") as node:
        feed = bifrost.refs.client(Feed.Client, MARKS)(node.client("Feed", policy="none", timeout=60))
        timeline = feed.timeline()
        with timeline as posts:
            page = posts[first : first + count]
            for post in page:
                print(post.number, post.author, post.text, sep="\t")
            print("%d of %d posts, of %d bytes together" % (len(page), len(posts), timeline.size))


{"serve": serve, "read": read}[sys.argv[1]](*map(int, sys.argv[2:]))
