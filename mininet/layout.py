"""What an emulated rack looks like: names, addresses and commands.

The pure part of the Mininet emulation: it runs nothing and needs no Mininet, so
it is tested by itself (test_layout.py). It says the same as Go's packages
internal/rackaddr and rack/plan.
"""

import ipaddress
import os
import shutil

BLADE_PREFIX = ipaddress.IPv6Network("fd00:b1f0:0:1::/64")
RACK_PREFIX = ipaddress.IPv6Network("fd00:b1f0::/48")
DSM_PREFIX = 0x10  # byte 4 of every global pointer

# Stands for the switch in the blades' routes; a static neighbour has its MAC.
GATEWAY = "fe80::1"
SWITCH_MAC = "02:b1:f0:00:00:01"

CPU_PORT = 510
DEVICE_ID = 1
MTU = 65535
MIN_MTU, MAX_MTU = 1280, 65535
MAX_BLADES = 500  # switch ports below the CPU port
CAPACITY = 1 << 30  # bytes of a memory blade
NODES = 64  # concurrent nodes of a compute blade

# The thesis's rack (section 7.1).
COMPUTE = ("c1", "s1", "s2")
MEMORY = ("m1", "m2", "m3")

# Programs that run from the start: blade, command, text of the line that says
# that it is ready.
PROGRAMS = (
    ("s1", ("arrays", "server", "--services", "Ping"), "Ping is served"),
    ("s2", ("arrays", "server", "--services", "Arrays"), "Arrays is served"),
)

# Switches that run Bifröst's P4 program, and those that only carry baselines.
P4_SWITCHES = ("bifrost", "bmv2")
BASELINE_SWITCHES = ("ovs", "bridge")

# Debian packages by the command they bring; some only one switch needs.
PACKAGES = {
    "mnexec": "mininet",
    "brctl": "bridge-utils",
    "ifconfig": "net-tools",
    "ping": "iputils-ping",
    "ip": "iproute2",
}
SWITCH_PACKAGES = {
    "bmv2": {"ethtool": "ethtool"},
    "ovs": {"ovs-vsctl": "openvswitch-switch"},
}


class LayoutError(Exception):
    """Something is missing or out of range; the text says what to do."""


def blade_address(port):
    """Returns the address of the blade on a switch port."""
    return str(BLADE_PREFIX[port])


def blade_mac(port):
    """Returns the MAC of the blade on a switch port."""
    return "02:b1:f0:01:%02x:%02x" % (port >> 8, port & 0xFF)


def dsm_prefix(prefix=DSM_PREFIX):
    """Returns the prefix of all global pointers, as an IPv6 network."""
    return ipaddress.IPv6Network((prefix << 88, 40))


def routes(prefix=DSM_PREFIX):
    """Returns the prefixes that lie behind the switch."""
    return [str(RACK_PREFIX), str(dsm_prefix(prefix))]


def interfaces(ports):
    """Returns the switch's -i options; ports maps numbers to interfaces."""
    options = []
    for port, name in sorted(ports.items()):
        options += ["-i", "%d@%s" % (port, name)]
    return options


def bifrost_switch_command(binary, ports, socket):
    """Returns the command of the project's software switch."""
    return (
        [binary, "switch", "--device-id", str(DEVICE_ID)]
        + interfaces(ports)
        + ["--grpc-server-addr", "unix:" + socket, "--cpu-port", str(CPU_PORT)]
    )


def bmv2_switch_command(binary, ports, socket):
    """Returns the command of bmv2; a target's own options come behind --."""
    return (
        [binary, "--no-p4", "--log-console", "--log-level", "warn"]
        + ["--device-id", str(DEVICE_ID)]
        + interfaces(ports)
        + ["--", "--grpc-server-addr", "unix:" + socket]
        + ["--cpu-port", str(CPU_PORT)]
    )


def gatekeeper_command(binary, socket, mtu=MTU):
    """Returns the command of the Gatekeeper of the switch at socket."""
    return [
        binary, "gatekeeper", "--switch", "unix:" + socket,
        "--device-id", str(DEVICE_ID), "--mtu", str(mtu),
        "--dsm-prefix", str(DSM_PREFIX),
        "--admin-addr", "unix:" + os.path.join(os.path.dirname(socket), "admin.sock"),
    ]


def compute_command(binary, blade, iface, nodes=NODES):
    """Returns the command of a compute blade's daemon."""
    return [binary, "compute", "--blade", blade, "--iface", iface, "--nodes", str(nodes)]


def memory_command(binary, blade, iface, machine, capacity=CAPACITY):
    """Returns the command of a memory blade's daemon; machine is its id."""
    return [
        binary, "memory", "--blade", blade, "--iface", iface,
        "--capacity", str(capacity), "--machine", str(machine),
    ]


def quiet_settings():
    """Returns the sysctls that keep IPv6 from sending anything by itself.

    They are set as a namespace's defaults before it gets its interface.
    """
    return {
        "disable_ipv6": 0,
        "addr_gen_mode": 1,  # no link-local address
        "accept_ra": 0,
        "autoconf": 0,
        "router_solicitations": 0,
        "accept_redirects": 0,
        "accept_dad": 0,
        "dad_transmits": 0,
    }


def missing_packages(switch, which=shutil.which):
    """Returns the Debian packages that a switch needs and that are missing."""
    needed = dict(PACKAGES, **SWITCH_PACKAGES.get(switch, {}))
    return sorted({p for cmd, p in needed.items() if not which(cmd)})


def check_packages(switch, which=shutil.which):
    """Raises LayoutError with the install command if packages are missing."""
    missing = missing_packages(switch, which)
    if missing:
        raise LayoutError(
            "missing packages: run  apt-get install %s" % " ".join(missing)
        )


def check_mtu(mtu):
    """Raises LayoutError if an MTU is out of range; returns it otherwise."""
    if not MIN_MTU <= mtu <= MAX_MTU:
        raise LayoutError("--mtu %d: use %d to %d" % (mtu, MIN_MTU, MAX_MTU))
    return mtu


def find_program(name, bifrost=None, which=shutil.which):
    """Finds a program: a path as it is, a name beside bifrost, then on PATH."""
    places = [name]
    if bifrost and os.sep not in name:
        places.insert(0, os.path.join(os.path.dirname(bifrost), name))
    for place in places:
        path = which(place)
        if path:
            return os.path.abspath(path)
    if name == "simple_switch_grpc":
        remedy = "install bmv2 so that it is on PATH, or use --switch bifrost"
    else:
        remedy = "run  make build  first, or put it on PATH"
    raise LayoutError("%s is not there: %s" % (name, remedy))


def find_bifrost(given=None, which=shutil.which):
    """Finds the bifrost binary: given, ../bin/bifrost, or on PATH."""
    here = os.path.dirname(os.path.abspath(__file__))
    places = [given] if given else [os.path.join(here, "..", "bin", "bifrost"), "bifrost"]
    for place in places:
        path = which(place)
        if path:
            return os.path.abspath(path)
    raise LayoutError(
        "%s is not there: run  make build  first, or name it with --bifrost PATH"
        % (given or "bifrost")
    )
