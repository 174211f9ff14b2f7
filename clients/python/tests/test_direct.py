"""Who takes calls, and who is to forget calls, without a network."""

import unittest

from bifrost import direct, layout

ADD, ONCE = (direct.Method("Adder", "add", at_most_once) for at_most_once in (False, True))


class ServersTest(unittest.TestCase):
    def setUp(self):
        self.asked = []
        self.servers = direct.Servers(self.asked.append)

    def choose(self, now, since=None, method=ADD):
        """The name of the server that a call goes to, "a2" for incarnation 2 of a."""
        server = self.servers.choose(now, method, now if since is None else since)
        return server and "%s%s" % (server.node, server.incarnation if server.incarnation > 1 else "")

    def told(self, now, *names, **options):
        self.servers.told(now, self.asked.pop(), [direct.Server(n[0], int(n[1:] or 1)) for n in names], **options)

    def test_the_nodes_take_turns(self):
        self.assertIsNone(self.choose(1.0))
        self.assertIsNone(self.choose(1.1))  # asked once
        self.told(1.1, "a", "b")
        self.assertEqual({self.choose(1.2), self.choose(1.2)}, {"a", "b"})
        self.assertEqual(self.asked, [])

    def test_an_old_answer(self):
        self.choose(1.0)
        self.told(1.0, "a")
        self.assertEqual(self.choose(1.0 + direct.LIFETIME), "a")
        self.assertEqual(self.asked, [ADD])
        self.assertEqual(self.choose(1.0 + direct.STALE), "a")
        self.assertEqual(self.choose(9.0), "a")  # the Gatekeeper does not answer
        self.told(9.0, "b")
        self.assertEqual(self.choose(9.0), "b")  # it does

    def test_a_stale_answer_is_not_used_at_once(self):
        self.choose(1.0)
        self.told(1.0, "a")
        self.assertIsNone(self.choose(9.0))
        self.assertIsNone(self.choose(8.9 + direct.PATIENCE))
        self.told(8.9 + direct.PATIENCE, "b")
        self.assertEqual(self.choose(9.0), "b")

    def test_nobody(self):
        self.assertIsNone(self.choose(1.0))
        self.assertIsNone(self.choose(1.1))
        self.servers.told(1.1, self.asked.pop(), [], False, "deploy it")
        with self.assertRaisesRegex(direct.NobodyServes, "deploy it"):
            self.choose(1.1, 1.0)
        self.assertIsNone(self.choose(1.2))  # a call that began since: there may be somebody now
        self.told(1.2, "a")
        self.assertEqual(self.choose(1.2), "a")

    def test_the_gatekeeper_fails(self):
        self.choose(1.0)
        self.servers.failed(1.0, self.asked.pop())
        self.assertIsNone(self.choose(1.0))
        self.assertEqual(self.asked, [])  # not at once
        self.assertIsNone(self.choose(1.01 + direct.AGAIN))
        self.assertEqual(self.asked, [ADD])

    def test_a_node_that_closes(self):
        self.choose(1.0)
        self.told(1.0, "a", "b")
        self.servers.refused(1.1, ADD, direct.Server("a", 1))
        self.assertIsNone(self.choose(1.1))
        self.told(1.1, "a", "b")  # the Gatekeeper does not know yet
        self.assertEqual({self.choose(1.2), self.choose(1.2)}, {"b"})
        self.servers.refused(1.2, ADD, direct.Server("b", 1))
        self.assertIsNone(self.choose(1.2))
        self.told(1.2, "a", "b")
        self.assertIsNone(self.choose(1.2))
        self.assertEqual(self.asked, [])  # not at once
        self.assertIsNone(self.choose(1.21 + direct.AGAIN))
        self.told(1.21 + direct.AGAIN, "a2", "b")
        self.assertEqual({self.choose(1.3), self.choose(1.3)}, {"a2"})  # it is back
        self.assertEqual({self.choose(2.2), self.choose(2.2)}, {"a2", "b"})  # b has said so long ago

    def test_at_most_once_calls_do_not_wait_at_a_node(self):
        for method in ADD, ONCE:
            self.choose(1.0, method=method)
            self.told(1.0, "a", awaited=True)
        self.assertEqual(self.choose(1.01), "a")
        now, pauses = 1.0, []
        while len(pauses) < 6:
            began = now
            while not self.asked:
                now += 0.001
                self.assertIsNone(self.choose(now, method=ONCE))
            pauses.append(round(now - began, 2))
            self.told(now, "a", awaited=True)
        self.assertEqual(pauses, [0.02, 0.04, 0.08, 0.16, 0.25, 0.25])
        now += 0.26
        self.choose(now, method=ONCE)
        self.told(now, "a2")
        self.assertEqual(self.choose(now, method=ONCE), "a2")


class ForgetsTest(unittest.TestCase):
    def test_told_until_forgotten(self):
        f = direct.Forgets()
        self.assertIsNone(f.due())
        f.add(1.0, "a", b"1")
        f.add(1.0, "a", b"2")
        f.add(1.0, "b", b"3")
        self.assertEqual(f.tick(1.0), [("a", [b"1", b"2"], False), ("b", [b"3"], False)])
        self.assertEqual(f.tick(1.0), [])
        f.forgotten(1.0, "b", [b"1", b"2"])
        f.forgotten(1.0, "a", [b"1"])
        self.assertEqual(f.due(), 1.0 + direct.REPEAT)
        self.assertEqual(f.tick(f.due())[0], ("a", [b"2"], False))
        f.forgotten(1.1, "a", [b"2"])
        f.forgotten(1.1, "a", [b"2"])
        f.gone("b")
        self.assertIsNone(f.due())

    def test_a_silent_node(self):
        f, silent = direct.Forgets(), []
        f.add(1.0, "a", b"1")
        while not silent:
            now = f.due()
            silent = [node for node, _, long in f.tick(now) if long]
        self.assertEqual((silent, f.due() - now), (["a"], layout.MAX_TIMEOUT))


if __name__ == "__main__":
    unittest.main()
