"""Wire formats and numbers of the rack's protocols; docs/wire.md explains them.

Generated from the code by `go test ./internal/packetdoc -update`; do not edit.
"""

JOIN_SOCKET = "@bifrost/compute"  # abstract Unix socket of the blade's compute daemon; @ stands for a zero byte
JOIN_VARIABLE = "BIFROST_JOIN_SOCKET"  # environment variable: the path of another socket than that, as `bifrost dev` prints it
PROGRAM_VARIABLE = "BIFROST_PROGRAM"  # environment variable: the name under which the daemon has started the program
GATEKEEPER = "fd00:b1f0::1"  # address of the Gatekeeper
SERVICE_PREFIX = "fd00:b1f0:0:3::"  # upper half of the addresses of services
PORT_RPC = 45100  # UDP port of answers and of calls with pointers, at both ends
PORT_DSM = 45101  # UDP port of memory operations, at both ends
PORT_BULK = 45103  # UDP port of large messages without pointers and of the parts of all, at both ends
PORT_DIRECT = 45105  # UDP port of calls without pointers that fit a packet, at both ends; calls with pointers come to it, too
OVERHEAD = 48  # bytes of a packet that are the IPv6 and UDP headers
MAX_DATAGRAM = 65527  # bytes of a datagram at most
RPC_MAGIC = 45564  # opens a call header
RPC_VERSION = 3  # version of the call header
DSM_MAGIC = 45565  # opens a memory header
DSM_VERSION = 4  # version of the memory header
MAX_LISTS = 4  # lists of regions that a message has at most
LIST_REGIONS = 4  # regions that a list has room for
FLAG_RELEASED = 16  # call flag: the packet is the Gatekeeper's; it alone can set it
FLAG_DONE = 64  # call flag: completion of a one-way
FLAG_GIVEN_UP = 128  # call flag: its caller gives it up; of an ACK: its ledger has such a call
FLAG_MORE = 512  # call flag: the first packet of a large message
FLAG_SETTLED = 1024  # flag of a FORGET: it lists calls that nobody asks for any more; in an ACK: they are forgotten
FLAG_HEADERS = 2048  # call flag: headers stand in front of the Thrift message
MAX_HEADERS = 64  # headers of a message at most
MAX_HEADER_BYTES = 8192  # bytes of them at most, 4 for each included
FLAG_UNBEGUN = 4096  # call flag of an exception: the call did not begin to run, and will not; of an ACK: its sender has restarted
FLAG_TAINTED = 16384  # call flag: a call on behalf of a call of policy tainted
DSM_FINAL = 8  # memory flag of a settle: the request must not be applied from now on
DSM_APPLIED = 1  # memory flag of the reply to a settle: the request was applied
DSM_SLOT = 2  # memory flag of the refusal of an alloc: the slot is not free
BULK_MAGIC = 45563  # opens a header of the port for parts; its version is that of calls
BULK_RANGES = 64  # ranges of a pull at most
BULK_PULL_BYTES = 4194304  # bytes that a pull is answered with at most
BULK_TRIES = 14  # pulls in vain after which the sender of a message counts as silent
BULK_PUSH = 204800  # bytes of parts that follow a first packet without being asked for, 1024 for each part included
BULK_PUSH_REST = 4096  # bytes of a last part that is pushed, too, at most
MAX_MESSAGE = 1073807360  # bytes of a Thrift message at most, unless a program says otherwise
PROTOCOL = 5  # version of what a program and its daemon say to each other
MAX_REGION = 1073741824  # bytes of a region at most
LIST_SIZE = 48  # bytes of a list
SLOT_BITS = 20  # bits of a pointer that say which slot its region has
GENERATION_BITS = 22  # bits of a pointer that say which region of its slot it names
MAX_GENERATION = 4194303  # highest generation of a slot
MOST_AHEAD = 8  # how far a new region's generation may lie above the last one of its slot
BATCH_SLOTS = 64  # region slots of a batch
SLOTS_SIZE = 256  # bytes of the answer about the slots of a batch: 4 for each, with the last generation; bit 31 says that its region is there, bit 30 that it was freed just now
OFFSET_BITS = 30  # bits of a pointer that say which byte of the region it names
INITIAL_TIMEOUT = 0.02  # until the first call of a method is sent again
MIN_TIMEOUT = 0.01  # until a call is sent again, at least
MAX_TIMEOUT = 1  # between two copies of a call, at most
BLOCK_SLOTS = 16  # call slots of a block
BLOCKS = 65536  # blocks of a rack; nobody gets block 0
MAX_BLOCKS = 64  # blocks of a node at most
SLOT_OPEN = 1  # state of a call slot whose call is not over
SHARE_COMES = 1  # state of a standing lease by which nobody may read yet
SHARE_HOLDS = 2  # state of one by which its reader reads
SHARE_ENDED = 4  # state of one by which nobody reads any more
COUNT_BITS = 36  # bits of a call's number that count the calls of an incarnation in a slot; the incarnation is above them
FORGET_AFTER = 0.5  # time after which a node is told that nobody asks for the last call of a slot any more
HOST_VARIABLE = "BIFROST_HOST_FD"  # environment variable: the descriptor on which the child of `bifrost host` finds its host
HOST_VERSION = 1  # version of what a host and its child say to each other
HOST_MAX_HELLO = 4194304  # bytes of a child's hello at most
HOST_MAX_BESIDE = 262144  # bytes of a frame beside the Thrift message, value or result in it, at most
HOST_MAX_KEY = 4096  # bytes of a key of the state, or of an effect, at most
HOST_MAX_RANDOM = 65536  # random bytes that a child gets at once, at most
HOST_NO_POLICY = 255  # stands for the policy that the rack gives to a call which asks for none
SLOT_LIFETIME = 600  # silence after which a callee forgets a slot, if its calls have policy none

# Error codes.
OK = 0
PERMISSION_DENIED = 1
NO_SUCH_METHOD = 2
DEADLINE_EXCEEDED = 3
CANCELED = 4
OVERLOADED = 5
UNAVAILABLE = 6
BAD_REQUEST = 7
NOT_FOUND = 8
NO_SPACE = 9
NONDETERMINISM = 10
DEADLOCK = 11
STALE = 12
INTERNAL = 13
APPLICATION = 14
UNSUPPORTED = 15
DECLARED = 16

# What people call the error codes.
CODE_NAMES = (
    "ok",
    "permission denied",
    "no such method",
    "deadline exceeded",
    "canceled",
    "overloaded",
    "unavailable",
    "bad request",
    "not found",
    "no space",
    "nondeterminism",
    "deadlock",
    "stale",
    "internal",
    "application",
    "unsupported",
    "declared",
)

# Types of calls.
TYPE_CALL = 1
TYPE_REPLY = 2
TYPE_EXCEPTION = 3
TYPE_ONE_WAY = 4
TYPE_ACK = 5
TYPE_ASK = 6
TYPE_FORGET = 7

# Why the switch has turned a message around.
TURNED_DENIED = 1
TURNED_LENT = 2
TURNED_GONE = 3
TURNED_NEVER_BEGUN = 4

# Policies.
POLICY_NONE = 0
POLICY_RECOVER = 1
POLICY_FATE_SHARE = 2
POLICY_TAINTED = 3

# Packets of the port for parts.
BULK_PART = 1
BULK_PULL = 2
BULK_DONE = 3
BULK_GONE = 4

# Frames between a host and its child.
HOST_HELLO = 1
HOST_WELCOME = 2
HOST_READY = 3
HOST_CALL = 4
HOST_CANCEL = 5
HOST_ANSWER = 6
HOST_FAIL = 7
HOST_BROKEN = 8
HOST_GET = 9
HOST_SET = 10
HOST_DELETE = 11
HOST_KEYS = 12
HOST_NOW = 13
HOST_RANDOM = 14
HOST_EFFECT = 15
HOST_RUN = 16
HOST_EFFECT_DONE = 17
HOST_INVOKE = 18
HOST_RESULT = 19
HOST_LOG = 20

# Memory operations.
OP_ALLOC = 1
OP_READ = 2
OP_WRITE = 3
OP_FREE = 4
OP_SETTLE = 5
OP_LEDGER = 6
OP_SLOTS = 7

# Memory packets.
KIND_REQUEST = 1
KIND_REPLY = 2
KIND_NACK = 3

# The rpc header, 120 bytes, as a format of the struct module.
RPC_FORMAT = ">HBBHBB16s16s16sQIIIHHIIIHBBIIQHHI"
RPC_FIELDS = (
    "magic",
    "version",
    "type",
    "flags",
    "name_length",
    "code",
    "method",
    "call",
    "parent",
    "number",
    "caller_incarnation",
    "callee_incarnation",
    "slot",
    "turned",
    "turned_twin",
    "timeout",
    "branch",
    "index",
    "attempt",
    "lists",
    "reserved",
    "payload_length",
    "trailer_length",
    "service",
    "had",
    "had_twin",
    "reserved2",
)

# The list header, 48 bytes, as a format of the struct module.
LIST_FORMAT = ">QIB3sQQQQ"
LIST_FIELDS = (
    "parent_number",
    "parent_slot",
    "count",
    "reserved",
    "region0",
    "region1",
    "region2",
    "region3",
)

# The dsm header, 88 bytes, as a format of the struct module.
DSM_FORMAT = ">HBBHHQQ16sQIIQIIQIBBH"
DSM_FIELDS = (
    "magic",
    "version",
    "flags",
    "verdict",
    "verdict_twin",
    "request",
    "floor",
    "execution",
    "branch",
    "index",
    "incarnation",
    "length",
    "mirror_epoch",
    "blade_incarnation",
    "number",
    "slot",
    "copy",
    "members",
    "reserved",
)

# The bulk header, 56 bytes, as a format of the struct module.
BULK_FORMAT = ">HBBBBH16sIIQQII"
BULK_FIELDS = (
    "magic",
    "version",
    "kind",
    "answer",
    "reserved",
    "ranges",
    "call",
    "caller_incarnation",
    "callee_incarnation",
    "total",
    "offset",
    "size",
    "first",
)

# The relay header, 20 bytes, as a format of the struct module.
RELAY_FORMAT = ">HH16s"
RELAY_FIELDS = (
    "length",
    "port",
    "address",
)
