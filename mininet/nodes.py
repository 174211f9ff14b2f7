"""Bifröst's nodes for Mininet: P4 switches with their Gatekeeper, and blades.

They can be used in other scripts, alone or by the classes of rack.py:

    net = Mininet(topo=..., switch=BifrostSwitch, host=ComputeBlade, ...)
"""

import os

from mininet.log import info
from mininet.node import Host, Switch
from mininet.nodelib import LinuxBridge

import layout
import process


class NodeError(Exception):
    """A command that sets a node up has failed."""


def run(node, *command):
    """Runs a command in a node and returns its output; NodeError if it fails."""
    command = [str(c) for c in command]
    out, err, status = node.pexec(command)
    if status:
        raise NodeError("%s: %s: %s" % (node.name, " ".join(command), out + err))
    return out


def set_mtu(node, mtu):
    """Sets the MTU of all of a node's interfaces, in bytes."""
    for intf in node.intfList():
        if intf.name != "lo":
            run(node, "ip", "link", "set", "dev", intf.name, "mtu", mtu)


def shape(node, intf, commands):
    """Shapes what leaves by an interface with layout.shaping's commands.

    A kind that this kernel does not have is named in the error.
    """
    parent = ["root", "handle", "1:"]
    for kind, options in commands:
        command = ["tc", "qdisc", "add", "dev", intf, *parent, kind, *options]
        out, err, status = node.pexec([str(c) for c in command])
        if status and "kind is unknown" in out + err:
            raise NodeError(
                "this kernel has no %s (CONFIG_NET_SCH_%s): it cannot give links %s"
                % (kind, kind.upper(), {"netem": "a delay", "tbf": "a bandwidth"}[kind])
            )
        if status:
            raise NodeError("%s: %s: %s" % (node.name, " ".join(command), out + err))
        parent = ["parent", "1:1", "handle", "2:"]


class P4Switch(Switch):
    """A switch that runs Bifröst's P4 program, and the Gatekeeper beside it.

    Both are in a namespace of their own, so nothing touches the machine's
    network. Subclasses say how the switch itself is started.
    """

    controlIntf = None  # Mininet looks at it; there is no control network
    ready = None  # how the switch shows that it is ready

    def __init__(
        self, name, bifrost=None, directory=None, mtu=layout.MTU, machines=(), **params
    ):
        """name: of the switch
        bifrost: path of the bifrost binary
        directory: where sockets and logs go
        mtu: of all ports, in bytes
        machines: of memory blades, as layout.pair returns them"""
        params.update(inNamespace=True)
        params.setdefault("dpid", "1")
        super().__init__(name, **params)
        self.bifrost = layout.find_bifrost(bifrost)
        self.directory = directory
        self.mtu = mtu
        self.machines = machines
        self.socket = os.path.join(directory, name + ".sock")
        self.processes = []
        # Its ports are the switch's alone: the kernel's IPv6 keeps off them.
        run(self, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")

    def command(self, ports):
        """Returns the command of the switch; ports maps numbers to names."""
        raise NotImplementedError

    def start(self, controllers):
        """Starts switch and Gatekeeper; both are ready on return."""
        set_mtu(self, self.mtu)
        ports = {n: i.name for n, i in self.intfs.items() if i.name != "lo"}
        self._start("switch", self.command(ports), self.ready)
        gatekeeper = layout.gatekeeper_command(
            self.bifrost, self.socket, self.mtu, self.machines
        )
        self._start("gatekeeper", gatekeeper, "notify")

    def _start(self, what, command, ready):
        name = "%s-%s" % (self.name, what)
        p = process.Process(self, name, command, self.directory, ready, self.socket)
        self.processes.append(p)
        p.wait_ready()

    def stop(self, deleteIntfs=True):
        """Stops Gatekeeper and switch."""
        while self.processes:
            self.processes.pop().stop()
        super().stop(deleteIntfs)

    def terminate(self):
        """Ends whatever else was started here, and the node."""
        if self.shell:
            process.kill_members(self.pid)
        super().terminate()


class BifrostSwitch(P4Switch):
    """The project's own software switch."""

    ready = "notify"

    def command(self, ports):
        return layout.bifrost_switch_command(self.bifrost, ports, self.socket)


class Bmv2Switch(P4Switch):
    """p4lang's bmv2: simple_switch_grpc, found on PATH."""

    ready = "listen"

    def __init__(self, name, **params):
        self.program = layout.find_program("simple_switch_grpc")
        super().__init__(name, **params)

    def command(self, ports):
        return layout.bmv2_switch_command(self.program, ports, self.socket)


class BridgeSwitch(LinuxBridge):
    """A Linux bridge in a namespace of its own: a baseline, no P4."""

    controlIntf = None

    def __init__(self, name, mtu=layout.MTU, **params):
        params.update(inNamespace=True)
        params.setdefault("dpid", "1")
        super().__init__(name, **params)
        self.mtu = mtu
        run(self, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")

    def start(self, controllers):
        set_mtu(self, self.mtu)
        super().start(controllers)


class OvsSwitch(Switch):
    """Open vSwitch as a learning switch in user space: a baseline, no P4.

    It is one of its own, with its database, in a namespace of its own: it needs
    no service of the machine and leaves nothing in one.
    """

    controlIntf = None

    def __init__(self, name, mtu=layout.MTU, directory=None, **params):
        """name: of the switch
        mtu: of all ports, in bytes
        directory: where database, sockets and logs go"""
        params.update(inNamespace=True)
        params.setdefault("dpid", "1")
        super().__init__(name, **params)
        self.mtu = mtu
        self.directory = directory
        self.processes = []
        run(self, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")

    def start(self, controllers):
        """Starts database and switch, and gives it its ports."""
        set_mtu(self, self.mtu)
        at = layout.ovs_paths(self.directory)
        run(self, *layout.ovs_create_command(at))
        self._start("ovsdb", layout.ovs_database_command(at), at["db"])
        run(self, *layout.ovs_init_command(at))
        self._start("ovs", layout.ovs_switch_command(at), at["control"])
        ports = [i.name for i in self.intfList() if i.name != "lo"]
        run(self, *layout.ovs_ports_command(at, ports))

    def _start(self, what, command, socket):
        p = process.Process(
            self, "%s-%s" % (self.name, what), command, self.directory, "listen", socket,
            env={"OVS_RUNDIR": self.directory, "OVS_LOGDIR": self.directory},
        )
        self.processes.append(p)
        p.wait_ready()

    def stop(self, deleteIntfs=True):
        """Stops switch and database."""
        while self.processes:
            self.processes.pop().stop()
        super().stop(deleteIntfs)

    def terminate(self):
        """Ends whatever else was started here, and the node."""
        if self.shell:
            process.kill_members(self.pid)
        super().terminate()


class Blade(Host):
    """A blade without a daemon: one interface, behind which is the switch.

    It sends everything to the switch's MAC and asks nobody for neighbours,
    routers or duplicates.
    """

    def __init__(
        self, name, port=1, bifrost=None, directory=None, mtu=layout.MTU,
        offload=True, **params
    ):
        """name: of the blade
        port: of the switch, which also gives the blade its address
        bifrost: path of the bifrost binary
        directory: where sockets and logs go
        mtu: in bytes
        offload: may checksums be left to the interface? bmv2 needs them done"""
        params.update(ip=None)  # a rack has IPv6 only
        super().__init__(name, **params)
        self.port = port
        self.bifrost = bifrost
        self.directory = directory
        self.mtu = mtu
        self.offload = offload
        self.address = layout.blade_address(port)
        self.processes = []
        # Before it has its interface, so that the interface is quiet from the
        # beginning.
        for key, value in layout.quiet_settings().items():
            run(self, "sysctl", "-qw", "net.ipv6.conf.default.%s=%d" % (key, value))

    def config(self, **params):
        """Sets the interface up; Mininet calls it when all links are there."""
        result = super().config(**params)
        self.set_up(self.defaultIntf().name)
        return result

    def set_up(self, iface):
        """Sets address and routes of the blade's interface."""
        run(self, "ip", "link", "set", "dev", iface, "arp", "off")
        set_mtu(self, self.mtu)
        if not self.offload:
            run(self, "ethtool", "-K", iface, "tx", "off")
        run(self, "ip", "addr", "add", self.address + "/128", "dev", iface, "nodad")
        self.add_neighbour(layout.GATEWAY, layout.SWITCH_MAC)
        for prefix in layout.routes():
            run(
                self, "ip", "-6", "route", "add", prefix, "via", layout.GATEWAY,
                "dev", iface, "src", self.address,
            )

    def add_neighbour(self, address, mac):
        """Makes an address known by its MAC for good."""
        run(
            self, "ip", "-6", "neigh", "replace", address, "lladdr", mac,
            "dev", self.defaultIntf().name, "nud", "permanent",
        )

    def daemon_command(self):
        """Returns the command of the blade's daemon, None if it has none."""
        return None

    def start_daemon(self):
        """Starts the blade's daemon without waiting; wait_ready does that."""
        command = self.daemon_command()
        if command:
            self.start_program(self.name, command, "notify")

    def start_program(self, name, command, ready="start", what=None):
        """Starts a command on the blade (see process.Process)."""
        info(self.name, " ".join(command), "\n")
        p = process.Process(self, name, command, self.directory, ready, what)
        self.processes.append(p)
        return p

    def wait_ready(self):
        """Returns when all that was started here is ready."""
        for p in self.processes:
            p.wait_ready()

    def terminate(self):
        """Ends everything on the blade, programs before the daemon."""
        while self.processes:
            self.processes.pop().stop()
        if self.shell:
            process.kill_members(self.pid)
        super().terminate()


class ComputeBlade(Blade):
    """A blade with a compute daemon."""

    def daemon_command(self):
        iface = self.defaultIntf().name
        return layout.compute_command(self.bifrost, self.name, iface, self.directory)


class MemoryBlade(Blade):
    """A blade with a memory daemon."""

    def __init__(self, name, machine=0, capacity=layout.CAPACITY, **params):
        """machine: the id of its memory machine, 1 to 255 (0: the Gatekeeper chooses)
        capacity: bytes of memory; others as for Blade"""
        super().__init__(name, **params)
        self.machine = machine
        self.capacity = capacity

    def daemon_command(self):
        iface = self.defaultIntf().name
        return layout.memory_command(
            self.bifrost, self.name, iface, self.machine, self.capacity
        )


class PlainBlade(Blade):
    """A blade behind a switch that only knows MAC addresses: for baselines."""

    def set_up(self, iface):
        run(self, "ip", "link", "set", "dev", iface, "arp", "off")
        set_mtu(self, self.mtu)
        if not self.offload:
            run(self, "ethtool", "-K", iface, "tx", "off")
        run(self, "ip", "addr", "add", self.address + "/64", "dev", iface, "nodad")
