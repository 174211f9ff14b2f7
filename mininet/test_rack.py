"""Tests of rack.py as a command; they need root and Mininet, and say so.

    sudo /usr/bin/python3 -m unittest discover -s mininet

A Linux bridge needs no daemons, so it serves for what is true of any switch.
Those with a P4 switch need bin/bifrost (make build).
"""

import glob
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid

HERE = os.path.dirname(os.path.abspath(__file__))
COMMAND = [sys.executable, os.path.join(HERE, "rack.py")]
BIFROST = os.path.join(HERE, "..", "bin", "bifrost")
TIMEOUT = 300  # seconds for a whole emulation


def has_mininet():
    """Reports whether this Python has Mininet."""
    try:
        return importlib.util.find_spec("mininet.net") is not None
    except ModuleNotFoundError:
        return False


MISSING = ""
if not has_mininet():
    MISSING = "Mininet is missing: apt-get install mininet, and use /usr/bin/python3"
elif os.geteuid() != 0:
    MISSING = "namespaces need root"


def setUpModule():
    # Whoever runs the tests in the background may have SIGINT ignored, and what
    # they start would ignore it, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@unittest.skipIf(MISSING, MISSING)
class RackTest(unittest.TestCase):
    def setUp(self):
        # Whatever an emulation starts inherits this, so it can be found again.
        self.token = "BIFROST_TEST_%s" % uuid.uuid4().hex
        self.tmp = tempfile.mkdtemp(prefix="bf")
        self.addCleanup(shutil.rmtree, self.tmp, ignore_errors=True)
        self.env = dict(os.environ, TMPDIR=self.tmp, **{self.token: "1"})

    def popen(self, *args, **kwargs):
        """Starts rack.py."""
        return subprocess.Popen(
            [*COMMAND, *args], stdout=subprocess.PIPE, text=True, env=self.env, **kwargs
        )

    def rack(self, *args, typed=""):
        """Runs rack.py to its end; typed is its input."""
        with self.popen(*args, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            out, err = child.communicate(typed, timeout=TIMEOUT)
        return subprocess.CompletedProcess(args, child.returncode, out, err)

    def start(self, *args):
        """Starts rack.py with a command that waits; returns when that runs."""
        child = self.popen(
            *args, "--run", "echo up; exec sleep 1000",
            stderr=subprocess.DEVNULL, start_new_session=True,
        )
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        self.assertEqual(child.stdout.readline(), "up\n")
        return child

    def processes(self):
        """Returns the processes of this test's emulations. They hold the
        namespaces, and namespaces hold the links."""
        found = []
        for path in glob.glob("/proc/[0-9]*/environ"):
            try:
                with open(path, "rb") as environ:
                    if self.token.encode() in environ.read():
                        found.append(path)
            except OSError:
                pass  # it has ended
        return found

    def check_nothing_left(self):
        self.assertEqual(self.processes(), [])
        self.assertEqual(os.listdir(self.tmp), [])

    def test_exit_status_and_output(self):
        done = self.rack("--switch", "bridge", "--run", "echo here; exit 7")
        self.assertEqual((done.returncode, done.stdout), (7, "here\n"), done.stderr)
        self.assertIn("baselines only", done.stderr)
        self.check_nothing_left()

    def test_blades_meet(self):
        done = self.rack("--switch", "bridge", "--run", "ping -c 1 fd00:b1f0:0:1::6")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_signals(self):
        for sig, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            child = self.start("--switch", "bridge")
            child.send_signal(sig)
            self.assertEqual(child.wait(TIMEOUT), status)
            self.check_nothing_left()

    def test_bad_input(self):
        for args, want in (
            (("--mtu", "100"), "1280 to 65535"),
            (("--mtu", "65535", "--switch", "ovs"), "1280 to 9000"),
            (("--compute", "0"), "--compute 0"),
            (("--memory", "256"), "--memory 256"),
            (("--delay", "soon"), "--delay soon"),
            (("--bandwidth", "-1"), "--bandwidth -1"),
            (("--bifrost", "/no/such/file"), "/no/such/file is not there"),
            (("--switch", "hub"), "invalid choice"),
        ):
            done = self.rack(*args)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(want, done.stderr)
        self.check_nothing_left()

    def test_missing_program(self):
        done = self.rack("--bifrost", shutil.which("false"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("arrays is not there", done.stderr)
        self.check_nothing_left()

    def test_p4_switch(self):
        done = self.rack(
            "--bifrost", BIFROST, "--run",
            "ping -c 1 fd00:b1f0:0:1::2 && arrays add --size 16384 --count 2 --by value",
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("2 calls with 16384 bytes verified", done.stdout)
        self.check_nothing_left()

    def test_script(self):
        """What a script does: commands on blades, names, the admin API."""
        script = '''
import subprocess, sys, layout, rack
with rack.Rack(bifrost=sys.argv[1]) as r:
    print(r["c1"].cmd("bifrost blades"))
    print(r["s2"].cmd("arrays ping --count 2"))
    print(subprocess.check_output(
        [sys.argv[1], "status", "--admin-addr", "unix:" + r.admin_socket], text=True))
    for name in "c9", "m1x":
        try:
            r[name].cmd("true")
        except layout.LayoutError as e:
            print(e)
'''
        done = subprocess.run(
            [sys.executable, "-c", script, os.path.abspath(BIFROST)], cwd=HERE,
            env=self.env, capture_output=True, text=True, timeout=TIMEOUT,
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for want in (
            "m3     memory   ", "2 calls", "switch connected",
            "there is no blade c9: use c1, m1, m2, m3, s1, s2, switch",
            "there is no blade m1x: use c1, m1, ",
        ):
            self.assertIn(want, done.stdout)
        self.check_nothing_left()

    def test_command_line(self):
        """--cli runs commands on blades, by name, and shows what they print."""
        done = self.rack(
            "--bifrost", BIFROST, "--cli",
            typed="c1 ping -c 1 s1\nc1 arrays ping --count 2\nhub ping c1\nexit\n",
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("1 packets transmitted, 1 received", done.stderr)  # where Mininet prints
        self.assertIn("2 calls", done.stderr)
        self.assertIn("Unknown command: hub", done.stderr)
        self.check_nothing_left()

    def test_experiment(self):
        """An experiment runs on the blades, and only what a bridge carries."""
        done = self.rack(
            "--switch", "bridge", "--bifrost", BIFROST, "--experiment", "ping-overhead", "--quick"
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("raw UDP", done.stdout)
        self.assertIn("gRPC-Go", done.stdout)
        self.assertIn("baselines only", done.stdout)
        self.check_nothing_left()

    def test_experiment_that_fails(self):
        for name, want in (
            ("no-such-thing", "no experiment"), ("exactly-once", "baselines only")
        ):
            done = self.rack(
                "--switch", "bridge", "--bifrost", BIFROST, "--experiment", name, "--quick"
            )
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(want, done.stderr)
            self.check_nothing_left()

    def test_other_topology(self):
        """Blades by number, links with a bandwidth that the kernel enforces."""
        done = self.rack(
            "--switch", "bridge", "--compute", "2", "--memory", "1", "--bandwidth", "100",
            "--run", "ping -c 1 fd00:b1f0:0:1::3 >&2 && tc qdisc show dev c1-eth0",
        )
        if "no tbf" in done.stderr:
            self.assertEqual(done.returncode, 1)
        else:
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("rate 100Mbit", done.stdout)
        self.check_nothing_left()

    def test_delay(self):
        """A delay is there, or refused by the name of what the kernel lacks."""
        done = self.rack(
            "--switch", "bridge", "--delay", "20ms", "--run", "tc qdisc show dev c1-eth0"
        )
        if done.returncode:
            self.assertIn("this kernel has no netem", done.stderr)
        else:
            self.assertIn("delay 20ms", done.stdout)
        self.check_nothing_left()

    @unittest.skipUnless(shutil.which("ovs-vswitchd"), "apt-get install openvswitch-switch")
    def test_ovs(self):
        done = self.rack("--switch", "ovs", "--run", "ping -c 1 fd00:b1f0:0:1::6")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.check_nothing_left()

    def test_killed(self):
        """A kill leaves a directory at most, which the next run removes."""
        child = self.start("--bifrost", BIFROST)
        child.kill()
        child.wait()
        for _ in range(200):  # the kernel ends the others a moment later
            if not self.processes():
                break
            time.sleep(0.05)
        self.rack("--switch", "bridge", "--run", "true")
        self.check_nothing_left()


if __name__ == "__main__":
    unittest.main()
