"""A Mininet switch that runs any P4 program, with bifrost-switch or `bifrost switch`.

This file needs nothing but Mininet and one of these programs: it can be copied.

    from switch import ProgramSwitch

    net = Mininet(controller=None)
    s1 = net.addSwitch("s1", cls=ProgramSwitch, program="basic.json", p4info="basic.p4info.txt")
    ...
    net.start()
    s1.entry("ipv4_lpm", "hdr.ipv4.dstAddr=10.0.1.1/32", "ipv4_forward", "dstAddr=08:00:00:00:01:11", "port=1")

The n-th link that is added to the switch is its port n.
"""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from mininet.node import Switch

READY_TIMEOUT = 120.0  # seconds
STOP_GRACE = 3.0  # seconds
LAST_LINES = 10  # of what the switch has printed, in an error
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class SwitchError(Exception):
    """The switch cannot be started, or a command of it has failed. The text says why."""


class ProgramSwitch(Switch):
    """A switch in a namespace of its own that runs a compiled P4 program."""

    controlIntf = None  # Mininet looks at it; there is no control network

    def __init__(
        self, name, program=None, p4info=None, bifrost=None, arguments=(), **params
    ):
        """name: of the switch
        program: what p4c-bm2-ss has compiled for v1model (-o), a path
        p4info: its P4Info in text form (--p4runtime-files), a path
        bifrost: path of bifrost-switch or of bifrost; if None, one of them is on PATH
        arguments: further ones of the switch, for example --datapath go"""
        params.update(inNamespace=True)
        params.setdefault("dpid", "1")
        super().__init__(name, **params)
        for what, path in ("program", program), ("p4info", p4info):
            if not path or not os.path.isfile(path):
                raise SwitchError(
                    "switch %s: %s %r is no file: compile it with p4c-bm2-ss"
                    % (name, what, path)
                )
        self.program, self.p4info = os.path.abspath(program), os.path.abspath(p4info)
        self.command = find_switch(bifrost)
        self.arguments = list(arguments)
        self.process = None
        self.directory = tempfile.mkdtemp(prefix="%s-" % name)
        self.socket = os.path.join(self.directory, "p4runtime.sock")
        # Its ports are the switch's alone: the kernel's IPv6 keeps off them.
        self._run("sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")

    def start(self, controllers):
        """Starts the switch. It takes connections on return; controllers of Mininet
        speak OpenFlow, and are left out."""
        command = [*self.command]
        for number, interface in self.intfs.items():
            if interface.name != "lo":
                command += ["-i", "%d@%s" % (number, interface.name)]
        command += ["--p4info", self.p4info, "--grpc-server-addr", "unix:" + self.socket]
        with open(self._log_path(), "ab") as out:
            self.process = self.popen(
                [*command, *self.arguments, self.program],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                preexec_fn=_die_with_parent,
            )
        deadline = time.monotonic() + READY_TIMEOUT
        while not self._listens():
            status = self.process.poll()
            if status is not None or time.monotonic() > deadline:
                raise SwitchError(
                    "switch %s %s; it printed last:\n%s"
                    % (
                        self.name,
                        "takes no connections after %g seconds" % READY_TIMEOUT
                        if status is None
                        else "has ended with status %d" % status,
                        self.log(),
                    )
                )
            time.sleep(0.01)

    def entry(self, table, *words):
        """Inserts a table entry, in the words of `bifrost-switch entry`."""
        return self.bifrost_switch("entry", table, *words)

    def entries(self):
        """Returns all table entries, one a line."""
        return self.bifrost_switch("entries")

    def bifrost_switch(self, verb, *words):
        """Runs a command of `bifrost-switch` that speaks P4Runtime to this switch,
        and returns what it prints."""
        return self._run(*self.command, verb, *words, "--grpc-addr", "unix:" + self.socket)

    def log(self):
        """Returns the last lines that the switch has printed."""
        with open(self._log_path(), "r", errors="replace") as log:
            return "".join(log.readlines()[-LAST_LINES:])

    def stop(self, deleteIntfs=True):
        """Stops the switch."""
        if self.process:
            self.process.terminate()
            try:
                self.process.wait(STOP_GRACE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None
        shutil.rmtree(self.directory, ignore_errors=True)
        super().stop(deleteIntfs)

    def _run(self, *command):
        """Runs a command in the switch's namespace and returns what it prints."""
        out, err, status = self.pexec([str(c) for c in command])
        if status:
            raise SwitchError("%s: %s: %s" % (self.name, " ".join(command), out + err))
        return out

    def _log_path(self):
        return os.path.join(self.directory, "log")

    def _listens(self):
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.socket) == 0


def find_switch(given=None, which=shutil.which):
    """Returns the first words of the switch's commands: bifrost-switch, or bifrost
    and switch. given is one of these programs, or a path of one."""
    for name in [given] if given else ["bifrost-switch", "bifrost"]:
        path = which(name)
        if path:
            alone = os.path.basename(path).startswith("bifrost-switch")
            return [os.path.abspath(path)] if alone else [os.path.abspath(path), "switch"]
    raise SwitchError("%s is not there: put it on PATH" % (given or "bifrost-switch"))


def _die_with_parent():
    """Asks the kernel to kill the switch when this program ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
