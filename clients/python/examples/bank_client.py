"""Makes deposits in an account of the bank (bank_service.py) again and again, exactly once, and checks what it has after each.

    PYTHONPATH=clients/python:DIR /usr/bin/python3 clients/python/examples/bank_client.py COUNT ACCOUNT
"""

import sys

from bank import Bank

import bifrost


def main(count, account):
    with bifrost.join("bank-client") as node:
        client = Bank.Client(node.client("Bank", timeout=60))
        before = client.accounts().get(account, 0)
        for n in range(1, count + 1):
            got = client.deposit(account, 2)
            if got != before + 2 * n:
                sys.exit("deposit %d: account %s has %d, must have %d" % (n, account, got, before + 2 * n))
            print(got, flush=True)
        print("%d deposits: account %s has %d" % (count, account, client.accounts()[account]))


main(int(sys.argv[1]), sys.argv[2])
