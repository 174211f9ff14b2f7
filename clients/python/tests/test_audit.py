"""A node without a network: it frees results of which it has not heard, and nothing that it knows."""

import threading
import unittest
from unittest import mock

from bifrost import audit, layout, wire
from bifrost.account import Account
from bifrost.errors import Error
from harness import PATIENCE, POINTER, REGION
from test_rights import BRINGS, BROUGHT, Rights
from test_serving import Serving

UNKNOWN = wire.make_pointer(16, 1, 64, 9)  # what nobody has told of


def hurry(test):
    patch = mock.patch.object(audit, "FIRST_PAUSE", 0.001)
    patch.start()
    test.addCleanup(patch.stop)


def end_audits(test):
    """Waits until no node looks."""
    for thread in threading.enumerate():
        if thread.name == "bifrost audit":
            thread.join(PATIENCE)
            test.assertFalse(thread.is_alive())


class AccountTest(unittest.TestCase):
    """Regions of which a node is told that it owns them."""

    def unknown(self, change, explains=()):
        """Which of the regions 1 to 3 are unknown to an account that has 1, and changes before the list comes, and once more after that."""
        account = Account()
        account.add([1])
        account.watch()
        account.explain(explains)
        change(account)
        account.listed([1, 2, 3])
        change(account)
        return account.unknown()

    def test_unknown(self):
        self.assertEqual(self.unknown(lambda a: None), [2, 3])
        self.assertEqual(self.unknown(lambda a: a.drop([1])), [2, 3])
        self.assertEqual(self.unknown(lambda a: (a.add([2]), a.drop([2]))), [3])
        self.assertEqual(self.unknown(lambda a: a.leave([1])), [2, 3])
        self.assertEqual(self.unknown(lambda a: None, [3]), [2])

    def test_it_comes_after_the_list(self):
        account = Account()
        account.watch()
        account.listed([1, 2])
        account.add([2])
        account.drop([2])
        self.assertEqual(account.unknown(), [1])
        account.watch()
        account.listed([2])
        self.assertEqual(account.unknown(), [2], "what was noted for one list does not count for another one")

    def test_leaving(self):
        account = Account()
        account.add([1, 2])
        account.leave([1, 2])
        account.left([2])
        self.assertFalse(account.owns(1))
        account.watch()
        account.listed([1, 2])
        self.assertEqual(account.unknown(), [2])


class AuditTest(unittest.TestCase):
    """When a node looks."""

    def setUp(self):
        hurry(self)
        self.looks, self.outcome, self.done = threading.Semaphore(0), [], threading.Event()
        self.addCleanup(self.done.set)
        self.audit = audit.Audit(self.look, self.done)

    def look(self):
        self.looks.release()
        if self.outcome:
            raise self.outcome.pop()

    def looked(self):
        self.assertTrue(self.looks.acquire(timeout=PATIENCE))

    def over(self):
        """Waits until the node looks no more."""
        end_audits(self)
        self.assertFalse(self.looks.acquire(blocking=False))

    def test_once(self):
        for _ in range(2):
            self.audit.want()
            self.looked()
            self.over()

    def test_again_if_it_fails(self):
        self.outcome = [Error(layout.UNAVAILABLE, "the Gatekeeper is away")]
        with self.assertLogs("bifrost", "WARNING"):
            self.audit.want()
            self.looked()
            self.looked()
        self.over()

    def test_a_gatekeeper_that_does_not_know_the_question(self):
        self.outcome = [Error(layout.STALE, "it has heard what it holds")]
        self.audit.want()
        self.looked()
        self.over()
        self.audit.want()
        self.over()

    def test_who_is_told_what(self):
        def told(asks, kind=layout.TYPE_EXCEPTION, code=layout.UNAVAILABLE, flags=0):
            return audit.may_have_brought(asks, wire.Message(type=kind, code=code, flags=flags))

        self.assertEqual([told(False), told(True), told(True, flags=layout.FLAG_UNBEGUN)], [True] * 3)
        others = told(False, flags=layout.FLAG_UNBEGUN), told(True, layout.TYPE_REPLY, layout.OK), told(False, code=layout.INTERNAL)
        self.assertEqual(others, (False,) * 3)


class LookTest(Serving, Rights):
    """What a node frees that is told what it owns: REGION, which it knows, and what else a test says."""

    def setUp(self):
        hurry(self)
        super().setUp()
        self.listed, self.lists = [POINTER, UNKNOWN], lambda: None
        self.told = threading.Semaphore(0)
        self.session.owns = self.owns
        self.echo.process, self.process = self.hands_over, self.echo.process

    def owns(self):
        self.lists()
        self.told.release()
        return [], self.listed

    def hands_over(self, read, out):
        self.process(read, out)
        out.regions = [REGION]

    def looks(self):
        """A call of the node's is told unavailable. Waits until the node is told what it owns then."""
        outcome = self.start(payload=b"looks")
        _, b = self.take(self.direct, lambda _, b: wire.Message.parse(b).payload == b"looks")
        self.turn(wire.Message.parse(b), layout.TURNED_GONE)
        self.assertEqual(outcome().code, layout.UNAVAILABLE)
        self.assertTrue(self.told.acquire(timeout=PATIENCE))

    def frees_unknown(self):
        """It frees in the order of the regions, of which UNKNOWN is the last one."""
        self.until(lambda: UNKNOWN in self.freed)
        self.assertEqual(self.freed, [UNKNOWN])

    def test_what_nobody_knows(self):
        self.looks()
        self.frees_unknown()
        self.assertTrue(self.account.owns(REGION))

    def test_an_answer_says_unavailable(self):
        outcome = self.start()
        self.reply(self.call(), type=layout.TYPE_EXCEPTION, code=layout.UNAVAILABLE, callee_incarnation=10)
        self.assertEqual(outcome().code, layout.UNAVAILABLE)
        self.frees_unknown()

    def test_waits_for_calls(self):
        """What a call brings that was out is known when that is over, and not before."""
        self.listed.append(BRINGS)
        slow = self.start()
        m, waits, wait = self.call(), threading.Event(), self.node._ended.wait_for
        self.node._ended.wait_for = lambda over: (waits.set(), wait(over))
        self.looks()
        self.assertTrue(waits.wait(PATIENCE))
        self.assertEqual(self.freed, [])
        self.reply(m, regions=[BROUGHT], payload=b"2")
        self.assertEqual(slow(), ({}, b"2"))
        self.frees_unknown()
        self.assertTrue(self.account.owns(BROUGHT))

    def test_what_comes_and_goes_meanwhile(self):
        """What the node owned when it was listed, and has handed over since."""
        self.listed.append(BRINGS)

        def lists():
            outcome = self.start()
            self.reply(self.call(), regions=[BROUGHT], payload=b"2")
            outcome()
            self.account.drop([BROUGHT])

        self.lists = lists
        self.looks()
        self.frees_unknown()

    def test_what_answers_hand_over(self):
        """The switch may not have got the answer yet."""
        self.echo.may.release()
        self.send(self.message(7))
        self.assertEqual(self.answer().regions, [REGION])
        self.assertEqual((self.account.owns(REGION), self.account._leaving), (False, set()))
        self.looks()
        self.frees_unknown()

    def test_what_an_answer_is_to_hand_over(self):
        """It is not kept yet."""
        end, ends, may = self.node._calls.end, threading.Event(), threading.Event()
        self.addCleanup(may.set)
        self.node._calls.end = lambda *of: (ends.set(), may.wait(PATIENCE), end(*of))
        self.echo.may.release()
        self.send(self.message(7))
        self.assertTrue(ends.wait(PATIENCE))
        self.assertFalse(self.account.owns(REGION))
        self.looks()
        self.frees_unknown()

    def test_what_oneways_hand_over(self):
        """The switch may not have got the one-way yet, though it is acknowledged when the node is told what it owns."""
        self.start(oneway=True, pointers=[POINTER], policy="none")()
        m = self.call()
        self.assertFalse(self.account.owns(REGION))

        def lists():
            self.reply(m, flags=layout.FLAG_DONE)
            self.until(lambda: m.call not in self.node._caller.calls)

        self.lists = lists
        self.looks()
        self.frees_unknown()

    def test_the_node_ends(self):
        """The calls that were out are cut off, and may have brought what the node owns."""
        self.start()
        self.call()
        self.looks()
        self.node.memory.free_later = self.freed.append
        self.node.close(0.0)
        end_audits(self)
        self.assertEqual(self.freed, [])


if __name__ == "__main__":
    unittest.main()
