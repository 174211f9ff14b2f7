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
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
COMMAND = [sys.executable, os.path.join(HERE, "rack.py")]
BIFROST = os.path.join(HERE, "..", "bin", "bifrost")
TIMEOUT = 60  # seconds for a whole emulation



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


def rack(*args):
    """Runs rack.py to its end."""
    return subprocess.run(
        [*COMMAND, *args], capture_output=True, text=True, timeout=TIMEOUT
    )


@unittest.skipIf(MISSING, MISSING)
class RackTest(unittest.TestCase):
    def left(self):
        """Returns what an emulation can leave behind: namespaces are held by
        processes, links are in namespaces, files in one directory each."""
        listed = subprocess.run(
            ["lsns", "-t", "net", "-n", "-o", "NS"], capture_output=True, text=True
        )
        return set(listed.stdout.split()), set(glob.glob("/tmp/bifrost-mn-*"))

    def setUp(self):
        self.before = self.left()

    def check_nothing_left(self):
        namespaces, files = self.left()
        self.assertFalse(namespaces - self.before[0], "namespaces are left")
        self.assertFalse(files - self.before[1], "files are left")

    def start(self, *args):
        """Starts rack.py with a command that waits; returns when that runs."""
        child = subprocess.Popen(
            [*COMMAND, *args, "--run", "echo up; exec sleep 1000"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            start_new_session=True,
        )
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        self.assertEqual(child.stdout.readline(), "up\n")
        return child

    def test_exit_status_and_output(self):
        done = rack("--switch", "bridge", "--run", "echo here; exit 7")
        self.assertEqual((done.returncode, done.stdout), (7, "here\n"), done.stderr)
        self.assertIn("baselines only", done.stderr)
        self.check_nothing_left()

    def test_blades_meet(self):
        done = rack("--switch", "bridge", "--run", "ping -c 1 fd00:b1f0:0:1::6")
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
            (("--bifrost", "/no/such/file"), "/no/such/file is not there"),
            (("--switch", "hub"), "invalid choice"),
        ):
            done = rack(*args)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(want, done.stderr)
        self.check_nothing_left()

    def test_missing_program(self):
        done = rack("--bifrost", shutil.which("false"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("arrays is not there", done.stderr)
        self.check_nothing_left()

    def test_p4_switch(self):
        done = rack(
            "--bifrost", BIFROST, "--run",
            "ping -c 1 fd00:b1f0:0:1::2 && arrays add --size 16384 --count 2 --by value",
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("2 calls with 16384 bytes verified", done.stdout)
        self.check_nothing_left()

    def test_killed(self):
        """A kill leaves a directory at most, which the next run removes."""
        child = self.start("--bifrost", BIFROST)
        child.kill()
        child.wait()
        deadline = 200
        while self.left()[0] - self.before[0] and deadline:
            deadline -= 1
            signal.sigtimedwait([], 0.05)  # the kernel ends the processes meanwhile
        rack("--switch", "bridge", "--run", "true")
        self.check_nothing_left()


if __name__ == "__main__":
    unittest.main()
