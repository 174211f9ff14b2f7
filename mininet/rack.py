#!/usr/bin/python3
"""The thesis's rack in Mininet: the same daemons as `bifrost rack up`.

    sudo /usr/bin/python3 mininet/rack.py --cli
    sudo /usr/bin/python3 mininet/rack.py --run 'arrays add --by reference'
    sudo /usr/bin/python3 mininet/rack.py --experiment ping-overhead --quick
    sudo /usr/bin/python3 mininet/rack.py --switch ovs --experiment ping-overhead
    sudo /usr/bin/python3 mininet/rack.py --compute 8 --memory 2 --bandwidth 10000 --cli

Other scripts import RackTopo and Rack from here, and the node classes from
nodes.py. Needs Debian's mininet (2.3), hence /usr/bin/python3.
"""

import argparse
import os
import shutil
import signal
import sys

import layout
import process

try:
    from mininet.cli import CLI
    from mininet.log import setLogLevel
    from mininet.net import Mininet
    from mininet.topo import Topo
except ImportError as e:
    sys.exit(
        "rack.py: %s: run it by /usr/bin/python3, and  apt-get install mininet"
        " bridge-utils net-tools iputils-ping  if need be" % e
    )

import nodes

SWITCHES = {
    "bifrost": nodes.BifrostSwitch,
    "bmv2": nodes.Bmv2Switch,
    "ovs": nodes.OvsSwitch,
    "bridge": nodes.BridgeSwitch,
}

# Switches that understand checksums left to the interface.
OFFLOAD = {"bifrost": True, "bmv2": False, "ovs": True, "bridge": True}


class RackTopo(Topo):
    """Blades around one switch, each on a port of its own, from 1 on."""

    def build(
        self, compute=layout.COMPUTE, memory=layout.MEMORY, switch="bifrost",
        capacity=layout.CAPACITY, machines=(), **common
    ):
        """compute, memory: names of the blades
        switch: a key of SWITCHES
        capacity: bytes of each memory blade
        machines: tuples of the memory blades that hold copies of each other; others
        are paired in the order of their names
        common: bifrost, directory and mtu, as in nodes.py"""
        p4 = switch in layout.P4_SWITCHES
        if len(compute) + len(memory) > layout.MAX_BLADES:
            raise layout.LayoutError("at most %d blades" % layout.MAX_BLADES)
        machines = layout.pair(memory, machines)
        own = dict(common, machines=machines) if p4 else {"mtu": common["mtu"]}
        if switch == "ovs":
            own["directory"] = common["directory"]
        self.addSwitch("switch", cls=SWITCHES[switch], **own)
        common["offload"] = OFFLOAD[switch]
        for port, name in enumerate((*compute, *memory), 1):
            cls, extra = nodes.PlainBlade, {}
            if p4 and name in memory:
                cls = nodes.MemoryBlade
                machine = next(i for i, m in enumerate(machines, 1) if name in m)
                extra = {"machine": machine, "capacity": capacity}
            elif p4:
                cls = nodes.ComputeBlade
            self.addHost(name, cls=cls, port=port, **common, **extra)
            self.addLink(
                name, "switch", port1=0, port2=port,
                addr1=layout.blade_mac(port), addr2=layout.SWITCH_MAC,
            )


class Rack(Mininet):
    """A whole rack. Use it in a with statement: what it has started, it ends.

        with Rack(switch="bmv2") as rack:
            rack["c1"].cmdPrint("ping -c 1", rack["s1"].address)
            print(rack["c1"].cmd("bifrost status"))

    On blades, bifrost and the programs beside it are on PATH, and bifrost finds the
    Gatekeeper. Attributes for scripts:

    admin_socket: path of the Gatekeeper's admin API, a Unix socket, for `bifrost
        --admin-addr unix:PATH` or a client of one's own; None without a P4 switch
    directory: where sockets and logs are
    """

    def __init__(
        self, switch="bifrost", bifrost=None, mtu=layout.MTU, compute=layout.COMPUTE,
        memory=layout.MEMORY, capacity=layout.CAPACITY, programs=layout.PROGRAMS,
        delay=None, bandwidth=None, machines=()
    ):
        """switch: bifrost or bmv2; ovs or bridge for baselines only
        bifrost: path of the binary (default: ../bin/bifrost, or on PATH)
        mtu: in bytes
        compute, memory: names of the blades
        capacity: bytes of each memory blade
        programs: what runs from the start, as layout.PROGRAMS
        delay: of each link and direction, such as "1ms"
        bandwidth: of each link and direction, in Mbit/s
        machines: tuples of memory blades: ("m1", "m2") hold a copy each of the same
        memory, ("m3",) is alone; others are paired in the order of their names"""
        self.switch_kind = switch
        self.mtu = mtu
        self.shaping = layout.shaping(delay, bandwidth, mtu)
        self.p4 = switch in layout.P4_SWITCHES
        layout.check_mtu(mtu, switch)
        layout.check_packages(switch)
        self.bench_binary = bifrost
        self.bifrost = layout.find_bifrost(bifrost) if self.p4 else None
        self.programs = [
            (blade, [layout.find_program(command[0], self.bifrost), *command[1:]], text)
            for blade, command, text in (programs if self.p4 else ())
        ]
        self.directory = process.make_directory()
        self.admin_socket = layout.admin_socket(self.directory) if self.p4 else None
        topo = RackTopo(
            compute=compute, memory=memory, switch=switch, capacity=capacity,
            bifrost=self.bifrost, directory=self.directory, mtu=mtu, machines=machines,
        )
        super().__init__(topo=topo, controller=None, build=False)

    def start(self):
        """Builds and starts everything. On return all blades are registered, and every
        pair of memory blades holds two copies."""
        super().start()
        self._shape()
        for blade in self.hosts:
            blade.cmd(layout.shell_setup(self.path(), self.admin_socket))
        if not self.p4:
            self._know_each_other()
        for blade in self.hosts:
            blade.start_daemon()
        for blade in self.hosts:
            blade.wait_ready()
        if self.p4:
            self._await_copies()
        for blade, command, text in self.programs:
            name = "%s-%s" % (blade, os.path.basename(command[0]))
            self[blade].start_program(name, command, "print", text).wait_ready()

    def _await_copies(self):
        """Returns when every memory machine with two blades has two copies."""
        command = layout.machines_command(self.bifrost, self.directory)
        process.until(
            lambda: layout.mirrored(process.output(command)),
            "the memory blades do not hold two copies",
        )

    def _shape(self):
        """Gives every link its delay and bandwidth, in both directions."""
        switch = self["switch"]
        for port, blade in enumerate(self.hosts, 1):
            nodes.shape(blade, blade.defaultIntf().name, self.shaping)
            nodes.shape(switch, switch.intfs[port].name, self.shaping)

    def experiment(self, name, more=()):
        """Runs an experiment of `bifrost bench` on this rack; returns its exit
        status. It runs in the machine's own network and starts what it needs on
        the blades."""
        description = os.path.join(self.directory, "topology.json")
        with open(description, "w") as out:
            out.write(layout.describe(
                self.switch_kind, self.mtu, [(h.name, h.pid, h.address) for h in self.hosts]
            ))
        command = layout.bench_command(self.bench_binary, description, name, more)
        return process.run(command)

    def _know_each_other(self):
        """Static neighbours, for switches that only know MAC addresses."""
        for a in self.hosts:
            for b in self.hosts:
                if a is not b:
                    a.add_neighbour(b.address, layout.blade_mac(b.port))

    def stop(self):
        """Ends everything and removes every trace of it."""
        process.stop_all([p for h in self.hosts for p in reversed(h.processes)])
        super().stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def __getitem__(self, name):
        """Returns the blade of a name, or the switch; raises LayoutError with the
        names that there are."""
        layout.check_name(name, list(self.nameToNode))
        return super().__getitem__(name)

    def path(self):
        """Returns the PATH of commands on blades: programs beside bifrost first."""
        beside = [os.path.dirname(self.bifrost)] if self.bifrost else []
        return os.pathsep.join([*beside, os.environ["PATH"]])

    def run_on(self, blade, command):
        """Runs a shell command on a blade, on this terminal; returns its exit
        status."""
        env = dict(os.environ, PATH=self.path())
        if self.admin_socket:
            env[layout.ADMIN_VARIABLE] = "unix:" + self.admin_socket
        return process.run(["sh", "-c", command], self[blade].popen, env)


class RackCLI(CLI):
    """Mininet's command line: `c1 ping s1`, `c1 arrays add --by reference`."""

    def default(self, line):
        """Runs a command on the blade that it begins with. The names of others are
        replaced by their addresses, which Mininet does for IPv4 only."""
        blade, args, _ = self.parseline(line)
        if args and blade in self.mn:
            address = {h.name: h.address for h in self.mn.hosts}
            line = " ".join([blade, *(address.get(a, a) for a in args.split(" "))])
        super().default(line)


def parse(args):
    """Reads the command line."""
    p = argparse.ArgumentParser(
        description="Run the thesis's rack (c1, s1, s2, m1, m2, m3) in Mininet.",
        epilog="ovs and bridge carry baselines only: they do not route by pointer"
        " or method and protect nothing, so no daemons run.",
    )
    p.add_argument(
        "--switch", choices=list(SWITCHES), default="bifrost",
        help="what joins the blades (default: %(default)s)",
    )
    p.add_argument("--bifrost", metavar="PATH", help="the bifrost binary")
    p.add_argument(
        "--mtu", type=int, help="bytes (default: %d, with ovs %d)" % (layout.MTU, layout.OVS_MTU)
    )
    p.add_argument("--cli", action="store_true", help="Mininet's command line")
    p.add_argument("--run", metavar="CMD", help="run CMD on c1; its exit status is ours")
    p.add_argument(
        "--experiment", metavar="NAME",
        help="run an experiment of `bifrost bench` (its help lists them); its exit status is ours",
    )
    p.add_argument("--quick", action="store_true", help="a short form of the experiment")
    p.add_argument("--out", metavar="DIR", help="where the experiment's report and pictures go")
    p.add_argument(
        "--compute", type=int, metavar="N", help="compute blades: c1, s1, s2, … (default: 3)"
    )
    p.add_argument("--memory", type=int, metavar="N", help="memory blades: m1, … (default: 3)")
    p.add_argument(
        "--machine", metavar="BLADES", action="append", default=[],
        help="memory blades that hold a copy each of the same memory, as m1+m2, or m3 for"
        " one that is alone; repeat it (default: paired in the order of their names)",
    )
    p.add_argument("--delay", metavar="TIME", help="of each link and direction, such as 500us")
    p.add_argument("--bandwidth", metavar="MBIT", help="of each link and direction, in Mbit/s")
    p.add_argument("-v", "--verbose", action="store_true", help="show each step")
    return p.parse_args(args)


def main(args):
    """Runs the rack; returns the exit status."""
    options = parse(args)
    if os.geteuid() != 0:
        print("rack.py: namespaces need root: run it with sudo", file=sys.stderr)
        return 1
    setLogLevel("info" if options.verbose else "output")  # the command line's results are "output"
    for sig in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, lambda number, _: sys.exit(128 + number))
    try:
        with make(options) as rack:
            return use(rack, options)
    except KeyboardInterrupt:
        return 130
    except (layout.LayoutError, nodes.NodeError, process.ProcessError) as e:
        print("rack.py:", e, file=sys.stderr)
        return 1


def make(options):
    """Returns the rack that the options describe, not started."""
    compute, memory = layout.COMPUTE, layout.MEMORY
    if options.compute is not None:
        compute = layout.names("compute", options.compute)
    if options.memory is not None:
        memory = layout.names("memory", options.memory)
    programs = layout.programs(compute)
    bifrost = options.bifrost
    if options.experiment is not None:
        programs = ()  # they would only take part in what is measured
        bifrost = layout.find_bifrost(bifrost)
        process.keep_to(layout.rack_cpus(os.cpu_count()))
    machines = [tuple(m.split("+")) for m in options.machine]
    if options.experiment is not None and not machines:
        machines = [(m,) for m in memory]  # what copies cost is measured by itself
    mtu = options.mtu
    if mtu is None:
        mtu = layout.default_mtu(options.switch)
    return Rack(
        options.switch, bifrost, mtu, compute, memory, programs=programs,
        delay=layout.delay(options.delay) if options.delay else None,
        bandwidth=layout.bandwidth(options.bandwidth) if options.bandwidth else None,
        machines=machines,
    )


def use(rack, options):
    """Does what the options ask for with a rack that is up."""
    if not rack.p4:
        print(
            "rack.py: %s carries baselines only: no routing by pointer or method,"
            " no protection, no daemons" % options.switch,
            file=sys.stderr,
        )
    status = 0
    if options.run is not None:
        status = rack.run_on("c1", options.run)
    if options.experiment is not None:
        more = ["--quick"] if options.quick else []
        if options.out:
            more += ["--out", options.out]
        status = status or rack.experiment(options.experiment, more)
    if options.cli:
        RackCLI(rack)
    if options.run is None and options.experiment is None and not options.cli:
        names = " ".join("%s=%s" % (h.name, h.address) for h in rack.hosts)
        print("the rack works:", names)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
