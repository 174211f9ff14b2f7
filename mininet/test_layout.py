"""Tests of layout.py: python3 -m unittest discover -s mininet"""

import json
import os
import unittest

import layout


class AddressTest(unittest.TestCase):
    """The address plan is that of internal/rackaddr and rack/plan."""

    def test_blades(self):
        self.assertEqual(layout.blade_address(1), "fd00:b1f0:0:1::1")
        self.assertEqual(layout.blade_address(500), "fd00:b1f0:0:1::1f4")
        self.assertEqual(layout.blade_mac(1), "02:b1:f0:01:00:01")
        self.assertEqual(layout.blade_mac(500), "02:b1:f0:01:01:f4")

    def test_routes(self):
        self.assertEqual(layout.routes(), ["fd00:b1f0::/48", "0:0:1000::/40"])
        self.assertEqual(layout.routes(0xFF)[1], "0:0:ff00::/40")


class CommandTest(unittest.TestCase):
    """Commands are those that `bifrost rack up` runs."""

    PORTS = {2: "switch-eth2", 1: "switch-eth1", 10: "switch-eth10"}

    def test_bifrost(self):
        got = layout.bifrost_switch_command("/b", self.PORTS, "/s.sock")
        self.assertEqual(
            " ".join(got),
            "/b switch --device-id 1 -i 1@switch-eth1 -i 2@switch-eth2"
            " -i 10@switch-eth10 --grpc-server-addr unix:/s.sock --cpu-port 510",
        )

    def test_bmv2(self):
        got = layout.bmv2_switch_command("/b", {1: "e"}, "/s.sock")
        self.assertEqual(
            " ".join(got),
            "/b --no-p4 --log-console --log-level warn --device-id 1 -i 1@e"
            " -- --grpc-server-addr unix:/s.sock --cpu-port 510",
        )

    def test_daemons(self):
        self.assertEqual(
            " ".join(layout.gatekeeper_command("/b", "/s.sock", 9000)),
            "/b gatekeeper --switch unix:/s.sock --device-id 1 --mtu 9000"
            " --dsm-prefix 16 --open --tcp * --admin-addr unix:/admin.sock --log /gatekeeper-log",
        )
        self.assertEqual(
            layout.gatekeeper_command("/b", "/s", 9000, [("m1", "m2"), ("m3",)])[-4:],
            ["--machine", "m1+m2", "--machine", "m3"],
        )
        self.assertEqual(
            " ".join(layout.compute_command("/b", "c1", "c1-eth0", "/d")),
            "/b compute --blade c1 --iface c1-eth0 --nodes 64 --program-logs /d/programs-c1",
        )
        self.assertEqual(
            " ".join(layout.memory_command("/b", "m1", "m1-eth0", 1, 1 << 20)),
            "/b memory --blade m1 --iface m1-eth0 --capacity 1048576 --machine 1",
        )


class TopologyTest(unittest.TestCase):
    """Other racks than the thesis's, and what an experiment is told of one."""

    def test_names(self):
        self.assertEqual(layout.names("compute", 3), layout.COMPUTE)
        self.assertEqual(layout.names("memory", 3), layout.MEMORY)
        self.assertEqual(layout.names("compute", 1), ("c1",))
        self.assertEqual(len(set(layout.names("compute", 500))), 500)
        self.assertEqual(layout.names("memory", 255)[-1], "m255")

    def test_programs(self):
        self.assertEqual(layout.programs(layout.COMPUTE), layout.PROGRAMS)
        self.assertEqual([p[0] for p in layout.programs(("c1", "s1"))], ["s1"])

    def test_machines(self):
        """Memory blades are paired as Go's internal/pairing does it."""
        for given, memory, want in (
            ((), "m1", [("m1",)]),
            ((), "m3 m1 m2", [("m1", "m2"), ("m3",)]),
            ((), "m10 m9 m2 m1", [("m1", "m2"), ("m9", "m10")]),
            ((), "far near far2 near1", [("far", "far2"), ("near", "near1")]),
            ([("m2",)], "m1 m2 m3 m4", [("m2",), ("m1", "m3"), ("m4",)]),
        ):
            self.assertEqual(layout.pair(memory.split(), given), want)
        for given in ([("m1", "m9")], [("m1", "m1")], [("m1",), ("m1",)], [("m1", "m2", "m3")]):
            with self.assertRaises(layout.LayoutError):
                layout.pair(("m1", "m2", "m3"), given)

    def test_shell(self):
        self.assertEqual(layout.shell_setup("/b in:/usr", None), "export PATH='/b in:/usr'")
        self.assertEqual(
            layout.shell_setup("/b", "/d/admin.sock"),
            "export PATH=/b BIFROST_ADMIN_ADDR=unix:/d/admin.sock",
        )

    def test_unknown_blade(self):
        layout.check_name("c1", ["c1", "m1"])
        with self.assertRaisesRegex(layout.LayoutError, "no blade c9: use c1, m1"):
            layout.check_name("c9", ["c1", "m1"])

    def test_mirrored(self):
        single = '{"blades": ["m3"], "in_service": 1, "why": "alone"}\n'
        self.assertTrue(layout.mirrored(single))
        self.assertTrue(layout.mirrored('{"blades": ["m1", "m2"], "in_service": 2}\n' + single))
        for why, n in (("being told", 2), ("gone", 1)):
            self.assertFalse(layout.mirrored(
                '{"blades": ["m1", "m2"], "in_service": %d, "why": "%s"}\n' % (n, why)
            ))

    def test_shaping(self):
        self.assertEqual(layout.shaping(None, None, 9000), [])
        self.assertEqual(
            layout.shaping("1ms", 1000, 65535),
            [
                ("tbf", ["rate", "1000mbit", "burst", "500000", "latency", "50ms"]),
                ("netem", ["delay", "1ms"]),
            ],
        )
        # The bucket holds two packets, however slow the link.
        self.assertEqual(layout.shaping(None, 1, 65535)[0][1][3], "131070")

    def test_description(self):
        got = json.loads(layout.describe("ovs", 9000, [("c1", 7, "fd00:b1f0:0:1::1")]))
        self.assertEqual(got, {
            "switch": "ovs", "mtu": 9000, "protected": False,
            "blades": [{"name": "c1", "pid": 7, "address": "fd00:b1f0:0:1::1"}],
        })
        self.assertTrue(json.loads(layout.describe("bmv2", 9000, []))["protected"])

    def test_experiment(self):
        self.assertEqual(
            " ".join(layout.bench_command("/b", "/d.json", "call-chain", ["--quick"])),
            "/b bench call-chain --mininet /d.json --quick",
        )
        self.assertEqual(layout.rack_cpus(1), {0})
        self.assertEqual(layout.rack_cpus(2), {0})
        self.assertEqual(layout.rack_cpus(4), {0, 1})


class OvsTest(unittest.TestCase):
    """An Open vSwitch of its own keeps everything in the emulation's directory."""

    def test_commands(self):
        at = layout.ovs_paths("/d")
        for command in (
            layout.ovs_create_command(at), layout.ovs_database_command(at),
            layout.ovs_init_command(at), layout.ovs_switch_command(at),
            layout.ovs_ports_command(at, ["p1", "p2"]),
        ):
            self.assertIn("/d/", " ".join(command))
        self.assertEqual(
            layout.ovs_ports_command(at, ["p1", "p2"])[-6:],
            ["--", "add-port", "br0", "p1", "--", "add-port", "br0", "p2"][-6:],
        )


class BadInputTest(unittest.TestCase):
    """What is missing is named with its remedy."""

    def test_mtu(self):
        for mtu in (1280, 9000, 65535):
            self.assertEqual(layout.check_mtu(mtu), mtu)
        for mtu in (-1, 0, 1279, 65536):
            with self.assertRaisesRegex(layout.LayoutError, "1280 to 65535"):
                layout.check_mtu(mtu)
        self.assertEqual(layout.check_mtu(layout.default_mtu("ovs"), "ovs"), 9000)
        with self.assertRaisesRegex(layout.LayoutError, "1280 to 9000 with ovs"):
            layout.check_mtu(9001, "ovs")

    def test_blades(self):
        for kind, number in (
            ("compute", 0), ("compute", -1), ("compute", 501), ("memory", 0), ("memory", 256)
        ):
            with self.assertRaisesRegex(layout.LayoutError, "--%s %d" % (kind, number)):
                layout.names(kind, number)

    def test_links(self):
        for text in ("1ms", "200us", "2s"):
            self.assertEqual(layout.delay(text), text)
        for text in ("", "0ms", "-1ms", "1.5ms", "1", "1m", "1ms; rm"):
            with self.assertRaisesRegex(layout.LayoutError, "--delay"):
                layout.delay(text)
        self.assertEqual(layout.bandwidth("2.5"), 2.5)
        for text in ("", "x", "0", "-1", "nan", "inf", "1e9"):
            with self.assertRaisesRegex(layout.LayoutError, "--bandwidth"):
                layout.bandwidth(text)

    def test_packages(self):
        def only(*there):
            return lambda cmd: "/bin/" + cmd if cmd in there else None

        everything = only(*layout.PACKAGES)
        self.assertEqual(layout.missing_packages("bifrost", everything), [])
        self.assertEqual(
            layout.missing_packages("ovs", everything), ["openvswitch-switch"]
        )
        self.assertEqual(layout.missing_packages("bmv2", everything), ["ethtool"])
        with self.assertRaisesRegex(
            layout.LayoutError, "apt-get install bridge-utils iputils-ping"
        ):
            layout.check_packages("bifrost", only("mnexec", "ifconfig", "ip"))

    def test_programs(self):
        def nowhere(_):
            return None

        with self.assertRaisesRegex(layout.LayoutError, "--switch bifrost"):
            layout.find_program("simple_switch_grpc", which=nowhere)
        with self.assertRaisesRegex(layout.LayoutError, "arrays.*make build"):
            layout.find_program("arrays", which=nowhere)
        with self.assertRaisesRegex(layout.LayoutError, "--bifrost PATH"):
            layout.find_bifrost(which=nowhere)
        with self.assertRaisesRegex(layout.LayoutError, "^/x/b is not there"):
            layout.find_bifrost("/x/b", which=nowhere)

    def test_order_of_search(self):
        asked = []

        def which(name):
            asked.append(name)

        with self.assertRaises(layout.LayoutError):
            layout.find_program("arrays", "/opt/bin/bifrost", which)
        self.assertEqual(asked, ["/opt/bin/arrays", "arrays"])
        asked.clear()
        with self.assertRaises(layout.LayoutError):
            layout.find_program("./arrays", "/opt/bin/bifrost", which)
        self.assertEqual(asked, ["./arrays"])
        self.assertEqual(
            layout.find_bifrost(which=lambda name: name),
            os.path.abspath(
                os.path.join(os.path.dirname(layout.__file__), "../bin/bifrost")
            ),
        )


if __name__ == "__main__":
    unittest.main()
