#!/usr/bin/env -S bifrost host -- /usr/bin/python3
"""A bank whose calls run exactly once and whose accounts outlive it. `bifrost host`, above, has the accounts and the ledger; the handlers are here.

    thrift --gen py -out gen-py bank.thrift
    bifrost dev bank.yaml
    curl --json '{"account": "ada", "amount": 5}' -H 'Idempotency-Key: "1"' http://127.0.0.1:8046/call/Bank/deposit
"""

import os
import pathlib

from bank import Bank
from bank.ttypes import NotEnough

from bifrost import host

LETTERS = os.environ["BANK_LETTERS"]  # the world outside: a file that gets a line for each letter


class Handler:
    def deposit(self, account, amount):
        return add(account, amount)

    def transfer(self, source, target, amount):
        has = balance(source)
        if has < amount:
            raise NotEnough(has)
        receipt = host.random(8).hex()  # the same if the call runs again
        add(source, -amount)
        add(target, amount)
        # A letter is written at least once; its key tells a copy.
        host.effect("letter " + receipt, lambda: write("%s %s %s %d" % (receipt, source, target, amount)))
        return receipt

    def accounts(self):
        return {account: int(has) for account, has in host.state().items()}


def balance(account):
    return int(host.state().get(account, b"0"))


def add(account, amount):
    has = balance(account) + amount
    host.state()[account] = b"%d" % has
    return has


def write(letter):
    with open(LETTERS, "a") as f:
        f.write(letter + "\n")


idl = pathlib.Path(os.environ["BANK_IDL"]).read_text()
host.serve(host.Service("Bank", Bank.Processor, Handler(), idl=idl, state=True), name="bank", ready=lambda address: print("Bank is served by", address, flush=True))
