"""Adds to an account of examples/counter again and again, exactly once, and checks what it has after each call.

    thrift --gen py -out DIR examples/counter/counter.thrift
    PYTHONPATH=clients/python:DIR /usr/bin/python3 clients/python/examples/counter_client.py COUNT ACCOUNT
"""

import sys

from counter import Counter

import bifrost


def main(count, account):
    with bifrost.join("counter-python") as node:
        client = Counter.Client(node.client("Counter", timeout=60))
        before = client.totals()[account]
        for n in range(1, count + 1):
            got = client.add(account, b"\x01\x02")
            if got != before + 3 * n:
                sys.exit("call %d: account %d has %d, must have %d" % (n, account, got, before + 3 * n))
            print(got, flush=True)
    print("%d calls: account %d has %d" % (count, account, got))


main(int(sys.argv[1]), int(sys.argv[2]))
