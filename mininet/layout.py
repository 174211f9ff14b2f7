"""What an emulated rack looks like: names, addresses and commands.

The pure part of the Mininet emulation: it runs nothing and needs no Mininet, so
it is tested by itself (test_layout.py). It says the same as Go's packages
internal/rackaddr and rack/plan.
"""

import ipaddress
import json
import os
import re
import shlex
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
OVS_MTU = 9000  # the thesis's
MAX_BLADES = 500  # switch ports below the CPU port
MAX_MEMORY = 255  # what the machine byte of a pointer tells apart
MAX_MBIT = 1000000  # bandwidth of a link, Mbit/s
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


def admin_socket(directory):
    """Returns the path of the Gatekeeper's admin API of an emulation."""
    return os.path.join(directory, "admin.sock")


ADMIN_VARIABLE = "BIFROST_ADMIN_ADDR"  # where bifrost looks for the admin API


def shell_setup(path, socket):
    """Returns the command that makes a blade's shell find programs beside bifrost,
    and bifrost the admin API at socket, if there is one."""
    command = "export PATH=" + shlex.quote(path)
    if socket:
        command += " %s=%s" % (ADMIN_VARIABLE, shlex.quote("unix:" + socket))
    return command


def check_name(name, known):
    """Raises LayoutError if there is no blade of that name."""
    if name not in known:
        raise LayoutError("there is no blade %s: use %s" % (name, ", ".join(known)))


def pair(memory, given=()):
    """Returns the memory machines: tuples of the names of one blade, or of two of
    which each holds a copy. Those given come first; the other blades are paired in
    the order of their names, where numbers count as numbers, and the last one of an
    odd number is alone. It is the same as Go's package internal/pairing."""
    machines = [tuple(m) for m in given]
    named = [b for m in machines for b in m]
    for machine in machines:
        if not 1 <= len(machine) <= 2:
            raise LayoutError("machine %s: name one blade, or two" % "+".join(machine))
    for blade in named:
        if blade not in memory:
            raise LayoutError(
                "there is no memory blade %s: use %s" % (blade, ", ".join(memory))
            )
        if named.count(blade) > 1:
            raise LayoutError("blade %s is named twice: it serves one machine" % blade)
    rest = sorted(
        (b for b in memory if b not in named),
        key=lambda name: [
            (part.isdigit(), int(part) if part.isdigit() else part, part)
            for part in re.split(r"([0-9]+)", name)
        ],
    )
    return machines + [tuple(rest[i : i + 2]) for i in range(0, len(rest), 2)]


def gatekeeper_command(binary, socket, mtu=MTU, machines=()):
    """Returns the command of the Gatekeeper of the switch at socket; machines are
    as pair returns them."""
    command = [
        binary, "gatekeeper", "--switch", "unix:" + socket,
        "--device-id", str(DEVICE_ID), "--mtu", str(mtu),
        "--dsm-prefix", str(DSM_PREFIX), "--open", "--tcp", "*",
        "--admin-addr", "unix:" + admin_socket(os.path.dirname(socket)),
        "--log", os.path.join(os.path.dirname(socket), "gatekeeper-log"),
    ]
    for machine in machines:
        command += ["--machine", "+".join(machine)]
    return command


OVS_SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"


def ovs_paths(directory):
    """Returns where an Open vSwitch of its own keeps its things."""
    return {
        "conf": os.path.join(directory, "conf.db"),
        "db": os.path.join(directory, "db.sock"),
        "control": os.path.join(directory, "ovs.ctl"),
    }


def ovs_create_command(at):
    """Returns the command that makes the database."""
    return ["ovsdb-tool", "create", at["conf"], OVS_SCHEMA]


def ovs_database_command(at):
    """Returns the command of the database's server."""
    return [
        "ovsdb-server", at["conf"], "--remote=punix:" + at["db"],
        "--unixctl=" + at["db"] + ".ctl", "--no-chdir",
    ]


def ovs_init_command(at):
    """Returns the command that begins the configuration. Super-packets stay whole."""
    return [
        "ovs-vsctl", "--db=unix:" + at["db"], "--timeout=10", "--no-wait", "--", "init",
        "--", "set", "Open_vSwitch", ".", "other_config:userspace-tso-enable=true",
    ]


def ovs_switch_command(at):
    """Returns the command of the switch."""
    return ["ovs-vswitchd", "unix:" + at["db"], "--unixctl=" + at["control"], "--no-chdir"]


def ovs_ports_command(at, ports):
    """Returns the command that makes the bridge and gives it its ports."""
    command = [
        "ovs-vsctl", "--db=unix:" + at["db"], "--timeout=10", "add-br", "br0",
        "--", "set", "bridge", "br0", "datapath_type=netdev",
    ]
    for port in ports:
        command += ["--", "add-port", "br0", port]
    return command


def compute_command(binary, blade, iface, directory, nodes=NODES):
    """Returns the command of a compute blade's daemon. What its programs print is
    kept in the emulation's directory, which goes with the emulation also when the
    daemon was killed."""
    return [
        binary, "compute", "--blade", blade, "--iface", iface, "--nodes", str(nodes),
        "--program-logs", os.path.join(directory, "programs-" + blade),
    ]


def memory_command(binary, blade, iface, machine, capacity=CAPACITY):
    """Returns the command of a memory blade's daemon; machine is its id."""
    return [
        binary, "memory", "--blade", blade, "--iface", iface,
        "--capacity", str(capacity), "--machine", str(machine),
    ]


def machines_command(binary, directory):
    """Returns the command that prints the memory machines as JSON, one on a line."""
    return [binary, "machines", "--json", "--admin-addr", "unix:" + admin_socket(directory)]


def mirrored(text):
    """Reports whether every memory machine with two blades has two copies; text is
    what machines_command prints."""
    machines = [json.loads(line) for line in text.splitlines()]
    return all(
        m["in_service"] == len(m["blades"]) and not (len(m["blades"]) > 1 and m.get("why"))
        for m in machines
    )


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


def names(kind, number):
    """Returns the names of a number of blades of a kind: c1, s1, s2, … as in the
    thesis for compute, m1, m2, … for memory."""
    if not 1 <= number <= MAX_BLADES:
        raise LayoutError("--%s %d: use 1 to %d" % (kind, number, MAX_BLADES))
    if kind == "memory":
        if number > MAX_MEMORY:
            raise LayoutError("--memory %d: a pointer tells %d apart" % (number, MAX_MEMORY))
        return tuple("m%d" % n for n in range(1, number + 1))
    return ("c1",) + tuple("s%d" % n for n in range(1, number))


def programs(compute):
    """Returns the programs of PROGRAMS whose blades are there."""
    return tuple(p for p in PROGRAMS if p[0] in compute)


def delay(text):
    """Checks a link delay such as 1ms or 200us; returns it."""
    if not re.fullmatch(r"[1-9][0-9]{0,6}(us|ms|s)", text):
        raise LayoutError("--delay %s: use a number and us, ms or s, such as 500us" % text)
    return text


def bandwidth(text):
    """Checks a link bandwidth in Mbit/s; returns it as a number."""
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value <= MAX_MBIT:
        raise LayoutError("--bandwidth %s: use Mbit/s, up to %d" % (text, MAX_MBIT))
    return value


def shaping(link_delay, link_bandwidth, mtu):
    """Returns the tc commands, without the interface's name, that shape a link.

    The token bucket holds at least two packets of the MTU, as it must.
    """
    commands = []
    if link_bandwidth:
        burst = max(2 * mtu, int(link_bandwidth * 1e6 / 8 / 250))
        commands.append((
            "tbf",
            ["rate", "%gmbit" % link_bandwidth, "burst", str(burst), "latency", "50ms"],
        ))
    if link_delay:
        commands.append(("netem", ["delay", link_delay]))
    return commands


def rack_cpus(count):
    """Returns the CPUs of everything but clients and servers of an experiment, as
    bench.AssignCPUs in Go."""
    return set(range(max(1, count - 2)))


def describe(switch, mtu, blades):
    """Returns what `bifrost bench --mininet` reads, as JSON; blades are tuples of
    name, process id and address."""
    return json.dumps({
        "switch": switch, "mtu": mtu, "protected": switch in P4_SWITCHES,
        "blades": [{"name": n, "pid": pid, "address": a} for n, pid, a in blades],
    })


def bench_command(binary, description, experiment, more=()):
    """Returns the command of an experiment."""
    return [binary, "bench", experiment, "--mininet", description, *more]


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


def default_mtu(switch):
    """Returns the MTU that a switch gets, in bytes."""
    return OVS_MTU if switch == "ovs" else MTU


def check_mtu(mtu, switch="bifrost"):
    """Raises LayoutError if an MTU is out of range; returns it otherwise. Open
    vSwitch in user space loses packets as large as the others carry."""
    largest = OVS_MTU if switch == "ovs" else MAX_MTU
    if not MIN_MTU <= mtu <= largest:
        raise LayoutError("--mtu %d: use %d to %d with %s" % (mtu, MIN_MTU, largest, switch))
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
