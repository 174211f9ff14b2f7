"""Tests of layout.py: python3 -m unittest discover -s mininet"""

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
            " --dsm-prefix 16 --admin-addr unix:/admin.sock",
        )
        self.assertEqual(
            " ".join(layout.compute_command("/b", "c1", "c1-eth0")),
            "/b compute --blade c1 --iface c1-eth0 --nodes 64",
        )
        self.assertEqual(
            " ".join(layout.memory_command("/b", "m1", "m1-eth0", 1, 1 << 20)),
            "/b memory --blade m1 --iface m1-eth0 --capacity 1048576 --machine 1",
        )


class BadInputTest(unittest.TestCase):
    """What is missing is named with its remedy."""

    def test_mtu(self):
        for mtu in (1280, 9000, 65535):
            self.assertEqual(layout.check_mtu(mtu), mtu)
        for mtu in (-1, 0, 1279, 65536):
            with self.assertRaisesRegex(layout.LayoutError, "1280 to 65535"):
                layout.check_mtu(mtu)

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
