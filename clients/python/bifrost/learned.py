"""What a node knows of the arguments that it passes by reference: how many transfers of a value a region would spare, and how many reads it would
cost. Answers say so. It counts in halves of a transfer; docs/by-reference.md says how, and from which length on a region pays. No I/O; safe for concurrent use."""

import threading

TRANSFER, NOTHING = 2, -1  # who does not read all of a value has got it in vain; who does reads it faster from a message than from memory
MOST = 14
MUCH = 3
PARTS = 16 << 20  # bytes of a value that goes in parts, at most
MUCH_FROM = 512 << 10  # bytes of a value from which on a region pays that spares MUCH
PART_FROM = 4 << 20  # that from which on one pays that spares a transfer alone
BITS, ARGUMENTS = 4, 16  # of an argument in what an answer says, and of how many it says something


class Learned:
    """By argument: a key of service, method and name."""

    def __init__(self):
        self._lock = threading.Lock()
        self._seen = {}  # by argument: what the last three answers have said, the newest last

    def note(self, argument, spares):
        """Takes in what an answer says."""
        with self._lock:
            self._seen[argument] = (*self._seen.get(argument, (NOTHING,) * 3)[1:], spares)

    def believed(self, argument):
        """What a region would spare: the one in the middle of three counts, so two answers change it."""
        with self._lock:
            return sorted(self._seen.get(argument, (NOTHING,) * 3))[1]

    def last(self, argument):
        """What the last answer has said."""
        with self._lock:
            return self._seen.get(argument, (NOTHING,))[-1]


def below(spares, again):
    """Below which length a value travels inside a message. again: it has been in a message before, and a region is written once for all calls that come."""
    if spares >= MUCH or spares >= TRANSFER and again:
        return MUCH_FROM
    return PART_FROM if spares >= TRANSFER else PARTS + 1


def pack(all_spares):
    """The number in which an answer says what the arguments' regions would spare."""
    n = sum((max(NOTHING, min(s, MOST)) + 1) << BITS * i for i, s in enumerate(all_spares[:ARGUMENTS]))
    return n - (1 << 64) if n >> 63 else n


def unpack(number, count):
    """What the arguments' regions would spare, of so many arguments."""
    return [(number >> BITS * i & (1 << BITS) - 1) - 1 if i < ARGUMENTS else NOTHING for i in range(count)]
