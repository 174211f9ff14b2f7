"""Processes of an emulated rack: started in a node, watched, ended for sure."""

import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

# Seconds.
READY_TIMEOUT = 120.0
STOP_GRACE = 3.0
POLL_INTERVAL = 0.01

LAST_LINES = 10  # of a process's output, in an error

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class ProcessError(Exception):
    """A process did not come up; the text shows what it printed last."""


def die_with_parent():
    """Asks the kernel to kill this process when its parent ends.

    So an emulation that is killed leaves no daemon behind, and with its last
    process a namespace goes, too.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """One command in a Mininet node's namespace, its output in a file.

    ready says how it shows that it is ready: "notify" (it sends READY=1 to
    $NOTIFY_SOCKET, see sd_notify(3)), "listen" (the socket at path takes
    connections), a line of its output that holds a text ("print"), or "start".
    """

    def __init__(
        self, node, name, command, directory, ready="start", what=None, env=None
    ):
        self.name = name
        self.log = os.path.join(directory, name + ".log")
        self._ready = getattr(self, "_ready_" + ready)
        self._what = what
        self._notify = None
        env = dict(os.environ, **(env or {}))
        env.pop("NOTIFY_SOCKET", None)
        if ready == "notify":
            path = os.path.join(directory, name + ".notify")
            self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._notify.bind(path)
            self._notify.setblocking(False)
            env["NOTIFY_SOCKET"] = path
        with open(self.log, "ab") as out:
            self._popen = node.popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env,
                preexec_fn=die_with_parent,
            )

    @property
    def pid(self):
        """The process's id."""
        return self._popen.pid

    def wait_ready(self, timeout=READY_TIMEOUT):
        """Returns when the process is ready; raises ProcessError if it is not
        in time, or ends before."""
        deadline = time.monotonic() + timeout
        while not self._ready():
            status = self._popen.poll()
            if status is not None:
                self._fail("has ended with status %d" % status)
            if time.monotonic() > deadline:
                self._fail("is not ready after %g seconds" % timeout)
            time.sleep(POLL_INTERVAL)

    def terminate(self):
        """Asks the process to end."""
        if self._popen.poll() is None:
            self._popen.terminate()

    def stop(self, grace=STOP_GRACE):
        """Ends the process: SIGTERM, and SIGKILL after grace seconds."""
        self.terminate()
        try:
            self._popen.wait(grace)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        if self._notify:
            self._notify.close()

    def last_lines(self):
        """Returns the last lines of what the process has printed."""
        with open(self.log, "r", errors="replace") as log:
            return "".join(log.readlines()[-LAST_LINES:])

    def _fail(self, what):
        raise ProcessError(
            "%s %s; it printed last:\n%s" % (self.name, what, self.last_lines())
        )

    def _ready_start(self):
        return True

    def _ready_notify(self):
        try:
            return b"READY=1" in self._notify.recv(4096).split(b"\n")
        except BlockingIOError:
            return False

    def _ready_listen(self):
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self._what) == 0

    def _ready_print(self):
        with open(self.log, "r", errors="replace") as log:
            return any(self._what in line for line in log if line.endswith("\n"))


def run(command, popen=subprocess.Popen, env=None):
    """Runs a command on this terminal; returns its exit status. It ends with
    this program, also when that is interrupted."""
    child = popen(
        command, stdin=None, stdout=None, stderr=None, env=env, preexec_fn=die_with_parent
    )
    try:
        return child.wait()
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(STOP_GRACE)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def output(command):
    """Returns what a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def until(condition, otherwise, timeout=READY_TIMEOUT):
    """Returns when a condition holds; raises ProcessError if it does not in time."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise ProcessError("%s after %g seconds" % (otherwise, timeout))
        time.sleep(POLL_INTERVAL)


def keep_to(cpus):
    """Keeps this program, and what it starts, on some of the machine's CPUs."""
    os.sched_setaffinity(0, cpus)


def make_directory():
    """Makes a directory for sockets and logs, and removes those that killed
    emulations have left behind: their names tell whose they were."""
    base = tempfile.gettempdir()
    for name in os.listdir(base):
        owner = re.fullmatch(r"bifrost-mn-(\d+)-\w+", name)
        if owner and not os.path.exists("/proc/" + owner.group(1)):
            shutil.rmtree(os.path.join(base, name), ignore_errors=True)
    return tempfile.mkdtemp(prefix="bifrost-mn-%d-" % os.getpid())


def stop_all(processes, grace=STOP_GRACE):
    """Ends processes side by side."""
    for p in processes:
        p.terminate()
    for p in processes:
        p.stop(grace)


def kill_members(pid):
    """Kills every process in the network namespace of process pid, except for
    that process itself: whatever was started there and forgotten."""
    home = os.stat("/proc/%d/ns/net" % pid)
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) in (pid, os.getpid()):
            continue
        try:
            ns = os.stat("/proc/%s/ns/net" % entry)
            if (ns.st_dev, ns.st_ino) == (home.st_dev, home.st_ino):
                os.kill(int(entry), signal.SIGKILL)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            pass  # it has ended
