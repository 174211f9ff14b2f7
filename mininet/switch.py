"""A Mininet switch that runs any P4 program with `bifrost switch`.

It needs nothing else of Bifröst. In another script:

    from switch import ProgramSwitch

    net = Mininet(controller=None)
    s1 = net.addSwitch("s1", cls=ProgramSwitch, program="basic.json", p4info="basic.p4info.txt")
    ...
    net.start()
    s1.entry("ipv4_lpm", "hdr.ipv4.dstAddr=10.0.1.1/32", "ipv4_forward", "dstAddr=08:00:00:00:01:11", "port=1")

The n-th link that is added to the switch is its port n.
"""

import os
import shutil

from mininet.node import Switch

import layout
import nodes
import process


class ProgramSwitch(Switch):
    """A switch in a namespace of its own that runs a compiled P4 program."""

    controlIntf = None  # Mininet looks at it; there is no control network

    def __init__(
        self, name, program=None, p4info=None, bifrost=None, arguments=(), **params
    ):
        """name: of the switch
        program: what p4c-bm2-ss has compiled for v1model (-o), a path
        p4info: its P4Info in text form (--p4runtime-files), a path
        bifrost: path of the bifrost binary
        arguments: further ones of `bifrost switch`, for example --datapath go"""
        params.update(inNamespace=True)
        params.setdefault("dpid", "1")
        super().__init__(name, **params)
        for what, path in ("program", program), ("p4info", p4info):
            if not path or not os.path.isfile(path):
                raise layout.LayoutError(
                    "switch %s: %s %r is no file: compile it with p4c-bm2-ss"
                    % (name, what, path)
                )
        self.program, self.p4info = os.path.abspath(program), os.path.abspath(p4info)
        self.bifrost = layout.find_bifrost(bifrost)
        self.arguments = list(arguments)
        self.directory = process.make_directory()
        self.socket = os.path.join(self.directory, name + ".sock")
        self.process = None
        # Its ports are the switch's alone: the kernel's IPv6 keeps off them.
        nodes.run(self, "sysctl", "-qw", "net.ipv6.conf.default.disable_ipv6=1")

    def start(self, controllers):
        """Starts the switch. It takes connections on return; controllers of Mininet
        speak OpenFlow, and are left out."""
        ports = {n: i.name for n, i in self.intfs.items() if i.name != "lo"}
        command = [self.bifrost, "switch", *layout.interfaces(ports)]
        command += ["--p4info", self.p4info, "--grpc-server-addr", "unix:" + self.socket]
        command += [*self.arguments, self.program]
        self.process = process.Process(
            self, self.name, command, self.directory, "listen", self.socket
        )
        self.process.wait_ready()

    def entry(self, table, *words):
        """Inserts a table entry, in the words of `bifrost switch entry`."""
        return self.bifrost_switch("entry", table, *words)

    def entries(self):
        """Returns all table entries, one a line."""
        return self.bifrost_switch("entries")

    def bifrost_switch(self, verb, *words):
        """Runs a command of `bifrost switch` that speaks P4Runtime to this switch."""
        return nodes.run(
            self, self.bifrost, "switch", verb, *words, "--grpc-addr", "unix:" + self.socket
        )

    def log(self):
        """Returns the last lines that the switch has printed."""
        return self.process.last_lines()

    def stop(self, deleteIntfs=True):
        """Stops the switch."""
        if self.process:
            self.process.stop()
            self.process = None
        shutil.rmtree(self.directory, ignore_errors=True)
        super().stop(deleteIntfs)
