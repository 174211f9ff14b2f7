"""Tests of switch.py; they need root, Mininet and bin/bifrost, and say so."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

from test_rack import BIFROST, HERE, MISSING

DATA = os.path.join(HERE, "..", "p4switch", "testdata")


@unittest.skipIf(MISSING, MISSING)
class ProgramSwitchTest(unittest.TestCase):
    def setUp(self):
        from mininet.net import Mininet
        from switch import ProgramSwitch

        self.assertTrue(os.path.exists(BIFROST), "make build makes bin/bifrost")
        self.net = Mininet(controller=None)
        self.addCleanup(self.net.stop)
        self.switch = self.net.addSwitch(
            "psw1",
            cls=ProgramSwitch,
            program=os.path.join(DATA, "basic.json"),
            p4info=os.path.join(DATA, "basic.p4info.txt"),
            bifrost=BIFROST,
        )
        self.hosts = []
        for i in 1, 2:
            h = self.net.addHost(
                "ph%d" % i, ip="10.0.%d.%d/24" % (i, i), mac="08:00:00:00:0%d:11" % i
            )
            self.net.addLink(h, self.switch)
            self.hosts.append(h)
        self.net.start()
        for i, h in enumerate(self.hosts, 1):
            h.cmd("ip route add default via 10.0.%d.10" % i)
            h.cmd(
                "ip neigh add 10.0.%d.10 lladdr 08:00:00:00:0%d:00 dev %s"
                % (i, i, h.defaultIntf())
            )

    def ping(self):
        return self.hosts[0].cmd("ping -c 1 -W 2 10.0.2.2")

    def test_program_forwards_when_it_has_entries(self):
        for i in 1, 2:
            self.switch.entry(
                "ipv4_lpm", "hdr.ipv4.dstAddr=10.0.%d.%d/32" % (i, i),
                "ipv4_forward", "dstAddr=08:00:00:00:0%d:11" % i, "port=%d" % i,
            )
        self.assertIn("1 received", self.ping())
        self.assertEqual(2, len(self.switch.entries().splitlines()))

    def test_it_needs_no_other_file(self):
        with tempfile.TemporaryDirectory() as directory:
            shutil.copy(os.path.join(HERE, "switch.py"), directory)
            subprocess.run(
                [sys.executable, "-c", "import switch; print(switch.ProgramSwitch)"],
                cwd=directory,
                env={"PATH": os.environ["PATH"]},
                check=True,
                stdout=subprocess.DEVNULL,
            )

    def test_either_program_is_found(self):
        from switch import SwitchError, find_switch

        def has(*paths):
            return lambda name: next((p for p in paths if name in (p, p.rsplit("/")[-1])), None)

        self.assertEqual(["/b/bifrost-switch"], find_switch(which=has("/b/bifrost", "/b/bifrost-switch")))
        self.assertEqual(["/b/bifrost", "switch"], find_switch(which=has("/b/bifrost")))
        self.assertEqual(
            ["/b/bifrost-switch-arm64"],
            find_switch("/b/bifrost-switch-arm64", which=has("/b/bifrost-switch-arm64")),
        )
        with self.assertRaisesRegex(SwitchError, "on PATH"):
            find_switch(which=has())

    def test_mistakes_are_named(self):
        from switch import ProgramSwitch, SwitchError

        with self.assertRaisesRegex(SwitchError, "no_such_table"):
            self.switch.entry("no_such_table", "a=1", "b")
        with self.assertRaisesRegex(SwitchError, "compile it"):
            ProgramSwitch("psw2", program="absent.json", p4info="absent.txt", bifrost=BIFROST)
        broken = self.net.addSwitch(
            "psw3",
            cls=ProgramSwitch,
            program=os.path.join(DATA, "basic.json"),
            p4info=os.path.join(DATA, "basic.p4info.txt"),
            bifrost=BIFROST,
            arguments=["--no-such-flag"],
        )
        with self.assertRaisesRegex(SwitchError, "(?s)has ended with status 1.*no-such-flag"):
            broken.start([])


if __name__ == "__main__":
    unittest.main()
