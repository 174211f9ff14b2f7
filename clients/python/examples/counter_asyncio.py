"""Adds to an account of examples/counter from many tasks at a time, exactly once, and checks the sum.

    thrift --gen py -out DIR examples/counter/counter.thrift
    PYTHONPATH=clients/python:DIR /usr/bin/python3 clients/python/examples/counter_asyncio.py COUNT ACCOUNT
"""

import asyncio
import sys

from counter import Counter

import bifrost.aio


async def main(count, account):
    async with bifrost.aio.join("counter-asyncio") as node:
        client = node.client(Counter.Client, "Counter", timeout=60)
        before = (await client.totals())[account]
        await asyncio.gather(*(client.add(account, b"\x01\x02") for _ in range(count)))
        got = (await client.totals())[account]
        if got != before + 3 * count:
            sys.exit("account %d has %d, must have %d" % (account, got, before + 3 * count))
    print("%d calls at a time: account %d has %d" % (count, account, got))


asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
