"""What a program's model does with a packet: p4c's JSON as the Go executor runs it (p4switch/interp), for validate.py.

Model.ends() runs it on the frame whose bytes are machine.packet(i), under the conditions that the solver has, and yields an End for each way that is
possible then. It differs from symbolic.py, which proves what programs promise whatever the specification leaves open: here a field of a header that
the packet does not have reads as 0, that of one that the program has made invalid keeps its value, arithmetic is signed, the frame has a length,
checksums are computed, and a table's functions are of its key's bytes as the code has them.
"""
import z3

from machine import CRC16, CRC32, DROP_PORT, LEN, PORT, GivenUp, Slice, join, packet
from symbolic import ARITHMETIC, COMPARISON as UNSIGNED, WIDE, Program, fit, truth


FAILED = "an assertion has failed"  # as a message
MEMBER, GROUP = (1 << 31) - 2, (1 << 31) - 1  # what entries of a table with an action profile name in the place of an action


class Way:
    """A way through the program."""

    def __init__(self):
        self.fields, self.valid = {}, {}
        self.position = 0      # of the parser
        self.grown = 0         # by how many bytes packet_length has changed
        self.error = "NoError"
        self.digest = None
        self.counted = []      # (counter, cell, offset, how much)
        self.digests = []      # bytes of each; of a message the text, then bytes
        self.gone = False      # an assertion has failed
        self.array = None
        self.asked = []        # (table, key) of each lookup

    def copy(self):
        w = Way.__new__(Way)
        w.__dict__.update(self.__dict__)
        w.fields, w.valid = dict(self.fields), dict(self.valid)
        w.counted, w.digests, w.asked = self.counted[:], self.digests[:], self.asked[:]
        return w


class End:
    """What becomes of a packet: it is dropped, or leaves by a port as some bytes and what follows in the frame that came."""

    def __init__(self, way, port=None, head=(), tail=0):
        self.way, self.port, self.head, self.tail = way, port, list(head), tail


class Model(Program):
    """A compiled program, and where its registers lie."""

    def __init__(self, source, listing):
        super().__init__(source)
        self.cells = {r["name"]: r for r in listing["registers"] or []}
        self.states = {s["name"]: s for s in self.json["parsers"][0]["parse_states"]}
        self.signed = {(h["name"], f[0]) for h in self.json["headers"] for t in self.json["header_types"] if t["name"] == h["header_type"]
                       for f in t["fields"] if len(f) > 2 and f[2]}
        self.indirect = {c["name"]: c["size"] for c in self.json["counter_arrays"] if not c["is_direct"]}
        self.tables = {t["name"]: t for p in self.json["pipelines"] for t in p["tables"]}
        self.room = {m["name"].partition(" ")[2]: m["entries"] - m["first"] for m in (listing["maps"] or []) if m["name"].startswith("direct ")}
        self.firsts = {m["name"].partition(" ")[2]: m["first"] for m in (listing["maps"] or []) if m["name"].startswith("direct ")}
        self.places = {a["id"]: i for i, a in enumerate(self.json["actions"])}
        self.members = {}  # the numbered actions of each profile's members
        for t in self.tables.values():
            if t["type"] != "simple":
                self.members.setdefault("members " + t["action_profile"], []).extend(self.numbered(t))
        self.machine, self.sums = None, []

    # ---- tables, for both sides

    def key(self, table, elements, least):
        """The bytes of a key that the code looks for, as one number."""
        return z3.simplify(join(elements, least, low_first=False))

    def word(self, table, key, at, n):
        """What is at a place of the entry that a key finds, as 64 bits: its words are functions of the key."""
        whole = z3.Function(f"{table}[{at // 8 * 8}]", key.sort(), z3.BitVecSort(64))(key)
        if at % 8 + n > 8:
            raise GivenUp("a number across the words of an entry")
        return z3.simplify(z3.ZeroExt(64 - 8 * n, z3.Extract(8 * (at % 8 + n) - 1, at % 8 * 8, whole)) if n < 8 else whole)

    def facts(self, name, key):
        """What the control plane writes into entries (table.go), of the entry that a key finds."""
        action, hit = self.word(name, key, 0, 4), self.word(name, key, 8, 4)
        if name in self.members:
            return [hit == 1, z3.Or([action == n for n, _ in self.members[name]])] + self.within(name, key, action, self.members[name])
        t = self.tables[name]
        numbered = self.numbered(t)
        allowed = z3.Or([action == n for n, _ in numbered])
        if t["type"] == "simple":
            out = [z3.Or(hit == 0, hit == 1), z3.If(hit == 1, allowed, z3.Or(action == 0, allowed))]
        else:
            named = [action == MEMBER] + ([action == GROUP] if t["type"] == "indirect_ws" else [])
            out = [z3.Or(hit == 0, hit == 1), z3.If(hit == 1, z3.Or(named), z3.Or(action == 0, allowed))]
        if name in self.room:
            out.append(z3.ULT(self.word(name, key, 4, 4), self.room[name]))
        if not t["key"]:
            out.append(hit == 0)
        out += self.within(name, key, action, numbered)
        default = t.get("default_entry")
        if default and default.get("action_const") and default.get("action_entry_const", True):
            out.append(z3.Implies(hit == 0, action == next(n for n, a in numbered if a == default["action_id"])))
            for (at, width), v in zip(self.arguments(default["action_id"]), default["action_data"]):
                for k in range(0, width, 64):
                    out.append(z3.Implies(hit == 0, self.word(name, key, at + k // 8, 8) == int(v, 16) >> k & (1 << 64) - 1))
        return out

    def within(self, name, key, action, numbered):
        """The arguments of entries are no wider than the actions' parameters."""
        out = []
        for n, a in numbered:
            for at, width in self.arguments(a):
                for k in range(0, width, 64):
                    if width - k < 64:
                        out.append(z3.Implies(action == n, z3.ULT(self.word(name, key, at + k // 8, 8), 1 << width - k)))
        return out

    def numbered(self, t):
        """A table's actions, as entries name them: by their place in the table, those of action profiles by that in the program."""
        if t["type"] == "simple":
            return [(i + 1, a) for i, a in enumerate(t["action_ids"])]
        return [(self.places[a] + 1, a) for a in t["action_ids"]]

    def member(self, name, key):
        """Whether a profile has a member."""
        return z3.Function(f"{name} has", key.sort(), z3.BoolSort())(key)

    def arguments(self, action):
        """Where an action's arguments lie in an entry, and their widths."""
        at = 16
        for d in self.actions[action]["runtime_data"]:
            yield at, d["bitwidth"]
            at += 8 * ((d["bitwidth"] + 63) // 64)

    def searched(self, t):
        """Whether a table is a tuple space."""
        return t["match_type"] in ("ternary", "range") or sum(k["match_type"] == "lpm" for k in t["key"]) > 1

    def words(self, name):
        """How many words a tuple space's key has."""
        return sum((self.width(*k["target"]) + 63) // 64 if k["target"][1] != "$valid$" else 1 for k in self.tables[name]["key"])

    def size(self, name):
        """How long a table's entries are, in bytes."""
        return max([16] + [at + (width + 63) // 64 * 8 for a in self.tables[name]["action_ids"] for at, width in self.arguments(a)])

    def key_of(self, way, t):
        """The key's bytes: how many bits they are, a one, the exact fields, then the prefix, which begins at its first bit. Of a tuple space, its words."""
        fields, searched = [], self.searched(t)
        for k in t["key"]:
            header, field = k["target"]
            v = self.get(way, header, field)
            if field != "$valid$" and not self.metadata[header] and not way.valid.get(header):
                v = z3.BitVecVal(0, v.size())
            if k.get("mask"):
                v = v & int(k["mask"], 16)
            if searched:
                n = (v.size() + 63) // 64
                v = fit(v, 64 * n)
                fields += [z3.Extract(64 * i + 63, 64 * i, v) for i in range(n)]
                continue
            spare = -v.size() % 8
            if spare and k["match_type"] == "lpm":
                v = z3.Concat(v, z3.BitVecVal(0, spare))
            elif spare:
                v = z3.ZeroExt(spare, v)
            fields.append((k["match_type"] == "lpm", v))
        if searched:
            return z3.simplify(z3.Concat(*fields) if len(fields) > 1 else fields[0])
        fields = [v for last in (False, True) for lpm, v in fields if lpm == last]
        size = 1 + sum(v.size() // 8 for v in fields)
        head = int.from_bytes((8 * size).to_bytes(4, "little"), "big") << 8 | 1
        return z3.simplify(z3.Concat(z3.BitVecVal(head, 40), *fields) if fields else z3.BitVecVal(head, 40))

    def entry(self, m, name, key):
        """The entry that a key finds in a table, as a solution of the solver has it: its fields and arguments as numbers. None is no entry but the default."""
        def number(e):
            return m.eval(e, model_completion=True).as_long()
        t = self.tables.get(name)
        if t is None or t["type"] != "simple" or number(self.word(name, key, 8, 4)) != 1:
            return None
        chosen = number(self.word(name, key, 0, 4))
        action = next((a for n, a in self.numbered(t) if n == chosen), None)
        if action is None:
            return None
        whole, at, match = number(key), 0, {}
        searched = self.searched(t)
        for last in (True, False):  # from the key's end
            for i, k in reversed(list(enumerate(t["key"]))):
                lpm = k["match_type"] == "lpm" and not searched
                if lpm != last:
                    continue
                width = 1 if k["target"][1] == "$valid$" else self.width(*k["target"])
                room = -(-width // 64) * 64 if searched else -(-width // 8) * 8
                match[i] = whole >> at & (1 << room) - 1
                if lpm:
                    match[i] >>= room - width
                at += room
        args = []
        for place, width in self.arguments(action):
            words = [number(self.word(name, key, place + 8 * k, 8)) for k in range((width + 63) // 64)]
            args.append(sum(w << 64 * k for k, w in enumerate(words)))
        return {"table": name, "match": [str(match[i]) for i in range(len(t["key"]))], "action": self.actions[action]["name"], "params": [str(v) for v in args]}

    # ---- ways on

    def ways(self, condition):
        return self.machine.ways(condition)

    def ends(self, array, sums):
        """What may become of the packet; sums are those that the machine has variables for."""
        self.sums = sums
        way = Way()
        way.array = array
        self.put(way, "standard_metadata", "ingress_port", PORT)
        self.put(way, "standard_metadata", "packet_length", z3.Extract(31, 0, LEN))
        for w in self.parsed(way, self.json["parsers"][0]["init_state"], 0):
            self.put(w, "standard_metadata", "parser_error", z3.BitVecVal(self.errors[w.error], 32))
            for x in self.verified(w):
                for y in self.controlled(x, "ingress"):
                    yield from self.left(y)

    def left(self, way):
        if way.gone:
            yield End(way)
            return
        if way.digest is not None:
            way = way.copy()
            way.digests.append(self.sample(way))
        spec, group = self.get(way, "standard_metadata", "egress_spec"), self.get(way, "standard_metadata", "mcast_grp")
        for copies in self.ways(group != 0):
            if copies:
                raise GivenUp("multicast")
            for dropped in self.ways(spec == DROP_PORT):
                if dropped:
                    yield End(way)
                    continue
                w = way.copy()
                self.put(w, "standard_metadata", "egress_port", spec)
                self.put(w, "standard_metadata", "egress_spec", z3.BitVecVal(0, 9))
                self.put(w, "standard_metadata", "packet_length", z3.Extract(31, 0, LEN + way.grown))
                for x in self.controlled(w, "egress"):
                    if x.gone:
                        yield End(x)
                        continue
                    for gone in self.ways(self.get(x, "standard_metadata", "egress_spec") == DROP_PORT):
                        if gone:
                            yield End(x)
                            continue
                        for y in self.updated(x.copy()):
                            yield self.written(y, spec)

    def written(self, way, port):
        """The packet as it leaves."""
        if self.json["deparsers"][0].get("primitives"):
            raise GivenUp("statements of the deparser")
        head = []
        for h in self.deparsed:
            if way.valid.get(h):
                whole = [self.get(way, h, f) for f, _ in self.headers[h]]
                if not whole:
                    continue
                whole = z3.simplify(z3.Concat(*whole) if len(whole) > 1 else whole[0])
                n = whole.size()
                if n % 8:
                    raise GivenUp("a header of no whole bytes")
                head += [Slice(whole, k) for k in reversed(range(n // 8))]
        return End(way, port, head, way.position)

    def sample(self, way):
        """A digest: its place among the learn lists, then its values, each in whole bytes."""
        ids = [l["id"] for l in self.json["learn_lists"]]
        place = ids.index(way.digest)
        out = [z3.BitVecVal(place >> 8 * k & 255, 8) for k in range(4)]
        for e in self.learn[way.digest]["elements"]:
            if e["type"] != "field":
                raise GivenUp("a constant in a digest")
            v = self.get(way, *e["value"])
            v = z3.ZeroExt(-v.size() % 8, v)
            out += [z3.Extract(v.size() - 8 * k - 1, v.size() - 8 * k - 8, v) for k in range(v.size() // 8)]
        return out

    # ---- parser

    def parsed(self, way, name, depth):
        if name is None:
            yield way
            return
        if depth > 40:
            raise GivenUp("a parser that loops")
        yield from self.operations(way.copy(), self.states[name], 0, depth)

    def failed(self, way, error):
        w = way.copy()
        w.error = error
        return w

    def reach(self, way, bits):
        """Whether the frame has so many bits from the parser's position on: ways of a condition."""
        return self.ways(z3.UGE(LEN, way.position + (bits + 7) // 8))

    def ahead(self, way, offset, width):
        """Bits from the parser's position on."""
        first, last = way.position + offset // 8, way.position + (offset + width + 7) // 8
        whole = [packet(i) for i in range(first, last)]
        whole = z3.Concat(*whole) if len(whole) > 1 else whole[0]
        low = (last - way.position) * 8 - offset - width
        return z3.simplify(z3.Extract(low + width - 1, low, whole))

    def operations(self, way, state, at, depth):
        if at == len(state["parser_ops"]):
            yield from self.selected(way, state, depth)
            return
        op = state["parser_ops"][at]
        kind, p = op["op"], op["parameters"]
        if kind == "extract" and p[0]["type"] == "regular":
            header = p[0]["value"]
            bits = sum(w for _, w in self.headers[header])
            for enough in self.reach(way, bits):
                if not enough:
                    yield self.failed(way, "PacketTooShort")
                    continue
                w, offset = way.copy(), 0
                for field, width in self.headers[header]:
                    w.fields[(header, field)] = self.ahead(w, offset, width)
                    offset += width
                w.valid[header] = True
                w.position += bits // 8
                yield from self.operations(w, state, at + 1, depth)
        elif kind == "advance" and p[0]["type"] == "hexstr":
            bits = int(p[0]["value"], 16)
            if bits % 8:
                raise GivenUp("an advance by no whole bytes")
            for enough in self.reach(way, bits):
                if not enough:
                    yield self.failed(way, "PacketTooShort")
                    continue
                w = way.copy()
                w.position += bits // 8
                yield from self.operations(w, state, at + 1, depth)
        elif kind == "verify":
            for holds in self.ways(truth(self.value(way, p[0], []))):
                if holds:
                    yield from self.operations(way, state, at + 1, depth)
                else:
                    code = int(p[1]["value"], 16)
                    yield self.failed(way, next(n for n, c in self.errors.items() if c == code))
        elif kind == "set":
            for enough in self.reach(way, self.looked(p[1])):
                if not enough:
                    yield self.failed(way, "PacketTooShort")
                    continue
                w = way.copy()
                self.assign(w, p[0], self.value(w, p[1], []))
                yield from self.operations(w, state, at + 1, depth)
        else:
            raise GivenUp(f"the parser's {kind}")

    def looked(self, e):
        """How many bits an expression looks ahead."""
        if isinstance(e, dict) and e.get("type") == "lookahead":
            return sum(e["value"])
        parts = e.values() if isinstance(e, dict) else e if isinstance(e, list) else ()
        return max([self.looked(x) for x in parts], default=0)

    def selected(self, way, state, depth):
        keys = state["transition_key"]
        for enough in self.reach(way, self.looked(keys)):
            if not enough:
                yield self.failed(way, "PacketTooShort")
                continue
            parts = []
            for k in keys:
                if k["type"] not in ("field", "lookahead"):
                    raise GivenUp(f"a transition on {k['type']}")
                v = self.ahead(way, *k["value"]) if k["type"] == "lookahead" else self.get(way, *k["value"])
                parts.append(z3.ZeroExt(-v.size() % 8, v))
            key = z3.Concat(*parts) if len(parts) > 1 else parts[0] if parts else None
            yield from self.transitions(way, state, key, 0, depth)

    def transitions(self, way, state, key, at, depth):
        ordered = [t for t in state["transitions"] if t["type"] != "default"] + [t for t in state["transitions"] if t["type"] == "default"][-1:]
        if at == len(ordered):
            yield way
            return
        t = ordered[at]
        if t["type"] == "default":
            yield from self.parsed(way, t["next_state"], depth + 1)
            return
        if t["type"] != "hexstr":
            raise GivenUp("a value set")
        mask = z3.BitVecVal(int(t["mask"], 16) if t["mask"] else -1, key.size())
        for matches in self.ways(key & mask == z3.BitVecVal(int(t["value"], 16), key.size()) & mask):
            if matches:
                yield from self.parsed(way, t["next_state"], depth + 1)
            else:
                yield from self.transitions(way, state, key, at + 1, depth)

    # ---- checksums

    def verified(self, way, at=0, bad=False):
        sums = [c for c in self.json["checksums"] if c["verify"]]
        if at == len(sums):
            w = way.copy()
            self.put(w, "standard_metadata", "checksum_error", z3.BitVecVal(int(bad), 1))
            yield w
            return
        c = sums[at]
        for applies in self.ways(z3.And(self.there(way, c["target"][0]), self.condition(way, c))):
            if not applies:
                yield from self.verified(way, at + 1, bad)
                continue
            target = self.get(way, *c["target"])
            for right in self.ways(fit(self.calculated(way, c["calculation"]), 64) == fit(target, 64)):
                yield from self.verified(way, at + 1, bad or not right)

    def updated(self, way, at=0):
        sums = [c for c in self.json["checksums"] if c["update"]]
        if at == len(sums):
            yield way
            return
        for applies in self.ways(self.condition(way, sums[at])):
            w = way.copy()
            if applies:
                self.put(w, *sums[at]["target"], self.calculated(w, sums[at]["calculation"]))
            yield from self.updated(w, at + 1)

    def condition(self, way, c):
        return truth(self.value(way, c["if_cond"], [])) if c.get("if_cond") else z3.BoolVal(True)

    def there(self, way, header):
        return z3.BoolVal(self.metadata[header] or bool(way.valid.get(header)))

    def calculated(self, way, name):
        c = next(c for c in self.json["calculations"] if c["name"] == name)
        parts = []
        for i in c["input"]:
            if i["type"] == "field":
                if self.metadata[i["value"][0]] or way.valid.get(i["value"][0]):
                    parts.append(self.get(way, *i["value"]))
            elif i["type"] == "hexstr":
                parts.append(z3.BitVecVal(int(i["value"], 16), i["bitwidth"]))
            elif i["type"] == "header":
                if way.valid.get(i["value"]):
                    parts += [self.get(way, i["value"], f) for f, _ in self.headers[i["value"]]]
            else:
                raise GivenUp("the payload in a calculation")
        algo = c["algo"].removesuffix("_custom")
        if algo == "csum16":
            return folded(self.named(words_of(parts)))
        whole = z3.Concat(*parts) if len(parts) > 1 else parts[0] if parts else None
        if whole is not None and whole.size() % 8:
            whole = z3.Concat(whole, z3.BitVecVal(0, -whole.size() % 8))
        n = whole.size() // 8 if parts else 0
        data = [z3.simplify(z3.Extract(8 * (n - k) - 1, 8 * (n - k) - 8, whole)) for k in range(n)]
        if algo == "identity":
            return fit(z3.Concat(*data[:8]) if n > 1 else data[0] if n else z3.BitVecVal(0, 8), 64)
        if algo == "xor16":
            value = z3.BitVecVal(0, 16)
            for k in range(0, n, 2):
                value = value ^ z3.Concat(data[k], data[k + 1] if k + 1 < n else z3.BitVecVal(0, 8))
            return fit(value, 64)
        if algo not in ("crc16", "crc32"):
            raise GivenUp(f"the algorithm {algo}")
        row, value = (CRC32, z3.BitVecVal(0xFFFFFFFF, 64)) if algo == "crc32" else (CRC16, z3.BitVecVal(0, 64))
        for d in data:
            e = row(z3.simplify(z3.Extract(7, 0, value) ^ d))
            value = z3.simplify(z3.LShR(value, 8) ^ z3.ZeroExt(64 - e.size(), e))
        return z3.simplify(value ^ 0xFFFFFFFF) if algo == "crc32" else value

    def named(self, total):
        """The variable that the machine has for a sum, if it has one that is always the same."""
        for v, of, _ in self.sums:
            if self.machine.always(total == of):
                return v
        return total

    # ---- controls

    def controlled(self, way, name):
        pipeline = next(p for p in self.json["pipelines"] if p["name"] == name)
        nodes = {t["name"]: ("table", t) for t in pipeline["tables"]}
        nodes.update({c["name"]: ("condition", c) for c in pipeline["conditionals"]})
        nodes.update({c["name"]: ("call", c) for c in pipeline.get("action_calls", [])})
        yield from self.node(way, nodes, pipeline["init_table"])

    def node(self, way, nodes, name):
        if name is None:
            yield way
            return
        kind, n = nodes[name]
        if kind == "condition":
            for holds in self.ways(truth(self.value(way, n["expression"], []))):
                yield from self.node(way, nodes, n["true_next" if holds else "false_next"])
        elif kind == "call":
            for w, ended in self.statements(way.copy(), self.actions[n["action_id"]]["primitives"], [], 0):
                yield from self.node(w, nodes, None if ended else n["next_node"])
        else:
            yield from self.applied(way, nodes, n)

    def applied(self, way, nodes, t):
        default = t.get("default_entry")
        if not t["key"] and default and default.get("action_const") and default.get("action_entry_const"):
            args = [z3.BitVecVal(int(v, 16), d["bitwidth"]) for v, d in zip(default["action_data"], self.actions[default["action_id"]]["runtime_data"])]
            yield from self.acted(way, nodes, t, default["action_id"], args, False)
            return
        if t.get("direct_meters"):
            raise GivenUp("a meter")
        key = self.key_of(way, t)
        w = way.copy()
        w.asked.append((t["name"], key))
        with self.machine.told(*self.facts(t["name"], key)):
            if t.get("with_counters"):
                cell = z3.simplify(z3.Extract(31, 0, self.word(t["name"], key, 4, 4)) + self.firsts[t["name"]])
                w.counted += [("direct", cell, 0, 1), ("direct", cell, 8, LEN)]
            action, hit = self.word(t["name"], key, 0, 4), self.word(t["name"], key, 8, 4)
            for was in self.ways(hit == 1):
                if was and t["type"] != "simple":
                    yield from self.by_profile(w, nodes, t, key, action)
                else:
                    yield from self.chosen(w, nodes, t, t["name"], key, action, was, 0)

    def by_profile(self, way, nodes, t, key, action):
        """What an entry's member does, if there is one."""
        for group in self.ways(action == GROUP):
            if group:
                raise GivenUp("a group of an action profile")
            name = "members " + t["action_profile"]
            number = z3.Extract(31, 0, self.word(t["name"], key, 16, 4))
            bits = [z3.Extract(8 * k + 7, 8 * k, number) for k in range(4)]
            at = z3.simplify(z3.Concat(z3.BitVecVal(32 << 24, 32), *bits))
            for there in self.ways(self.member(name, at)):
                if not there:
                    yield from self.node(way, nodes, self.following(t, None, True))
                    continue
                with self.machine.told(*self.facts(name, at)):
                    yield from self.chosen(way, nodes, t, name, at, self.word(name, at, 0, 4), True, 0)

    def chosen(self, way, nodes, t, name, key, action, hit, i):
        if i == len(t["action_ids"]):  # no action
            yield from self.node(way, nodes, self.following(t, None, hit))
            return
        number, a = self.numbered(t)[i]
        for this in self.ways(action == number):
            if not this:
                yield from self.chosen(way, nodes, t, name, key, action, hit, i + 1)
                continue
            args = []
            for at, width in self.arguments(a):
                words = [self.word(name, key, at + 8 * k, 8) for k in reversed(range((width + 63) // 64))]
                args.append(fit(z3.Concat(*words) if len(words) > 1 else words[0], width))
            yield from self.acted(way, nodes, t, a, args, hit)

    def acted(self, way, nodes, t, action, args, hit):
        for w, ended in self.statements(way.copy(), self.actions[action]["primitives"], args, 0):
            yield from self.node(w, nodes, None if ended else self.following(t, self.actions[action]["name"], hit))

    def following(self, t, action, hit):
        following = t["next_tables"]
        if "__HIT__" in following or "__MISS__" in following:
            return following.get("__HIT__" if hit else "__MISS__")
        return following.get(action, t["base_default_next"])

    # ---- actions

    def statements(self, way, ops, args, at, steps=0):
        """Runs an action: (way, whether it exits)."""
        while at < len(ops):
            op, a = ops[at]["op"], ops[at]["parameters"]
            at, steps = at + 1, steps + 1
            if steps > 4000:
                raise GivenUp("an action that loops")
            if op == "assign":
                self.assign(way, a[0], self.value(way, a[1], args))
            elif op == "add_header":
                self.add(way, a[0]["value"])
            elif op == "remove_header":
                self.remove(way, a[0]["value"])
            elif op == "assign_header":
                to, source = a[0]["value"], a[1]["value"]
                if way.valid.get(source):
                    for field, _ in self.headers[to]:
                        way.fields[(to, field)] = self.get(way, source, field)
                way.valid[to] = bool(way.valid.get(source))
            elif op == "mark_to_drop":
                self.put(way, "standard_metadata", "egress_spec", z3.BitVecVal(DROP_PORT, 9))
                self.put(way, "standard_metadata", "mcast_grp", z3.BitVecVal(0, 16))
            elif op == "exit":
                yield way, True
                return
            elif op == "log_msg":
                way.digests.append([a[0]["value"]] + [b for e in a[1]["value"] for b in self.argument(way, e, args)])
            elif op in ("assert", "assume"):
                for holds in self.ways(truth(self.value(way, a[0], args))):
                    w = way.copy()
                    if holds:
                        yield from self.statements(w, ops, args, at, steps)
                        continue
                    w.digests.append([FAILED])
                    w.gone = True
                    yield w, True
                return
            elif op == "generate_digest":
                way.digest = int(a[1]["value"], 16)
            elif op == "modify_field_with_hash_based_offset":
                low, most = fit(self.wide(self.value(way, a[1], args)), 64), fit(self.wide(self.value(way, a[3], args)), 64)
                value = fit(self.calculated(way, a[2]["value"]), 64)
                self.assign(way, a[0], low + z3.URem(value, z3.If(most == 0, z3.BitVecVal(1, 64), most)))
            elif op == "count":
                yield from self.counting(way, ops, args, at, steps, a)
                return
            elif op in ("register_read", "register_write"):
                yield from self.register_access(way, ops, args, at, steps, op, a)
                return
            elif op == "_jump":
                at = int(a[0]["value"], 16)
            elif op == "_jump_if_zero":
                for holds in self.ways(truth(self.value(way, a[0], args))):
                    yield from self.statements(way.copy(), ops, args, at if holds else int(a[1]["value"], 16), steps)
                return
            else:
                raise GivenUp(f"the primitive {op}")
        yield way, False

    def argument(self, way, e, args):
        """A number in a message: its words, the lowest byte first."""
        if e["type"] != "field":
            raise GivenUp("a message with what is no field")
        v = self.wide(self.value(way, e, args))
        return [z3.simplify(z3.Extract(8 * k + 7, 8 * k, v)) for k in range((self.width(*e["value"]) + 63) // 64 * 8)]

    def add(self, way, header):
        if self.metadata[header] or way.valid.get(header):
            return
        for field, width in self.headers[header]:
            way.fields[(header, field)] = z3.BitVecVal(0, width)
        way.valid[header] = True
        way.grown += sum(w for _, w in self.headers[header]) // 8

    def remove(self, way, header):
        if not self.metadata[header] and way.valid.get(header):
            way.valid[header] = False
            way.grown -= sum(w for _, w in self.headers[header]) // 8

    def counting(self, way, ops, args, at, steps, a):
        name, index = a[0]["value"], self.wide(self.value(way, a[1], args))
        for inside in self.ways(z3.And(index >= 0, index < self.indirect[name])):
            w = way.copy()
            if inside:
                cell = fit(index, 32)
                w.counted += [(name, cell, 0, 1), (name, cell, 8, LEN)]
            yield from self.statements(w, ops, args, at, steps)

    def register_access(self, way, ops, args, at, steps, op, a):
        """An access to a cell, which lies where the listing says."""
        read = op == "register_read"
        name = a[1 if read else 0]["value"]
        of, width = self.cells[name], self.registers[name]["bitwidth"]
        index = self.wide(self.value(way, a[2 if read else 1], args))
        for inside in self.ways(z3.And(index >= 0, index < of["cells"])):
            w = way.copy()
            if inside:
                places = [fit(index, 64) * of["stride"] + of["at"] + 8 * k for k in range((width + 63) // 64)]
                if read:
                    words = [z3.Select(w.array, p) for p in reversed(places)]
                    self.assign(w, a[0], fit(z3.Concat(*words) if len(words) > 1 else words[0], width))
                else:
                    v = fit(self.wide(self.value(w, a[2], args)), width)
                    v = fit(v, 64 * len(places))
                    for k, p in enumerate(places):
                        w.array = z3.Store(w.array, p, z3.Extract(64 * k + 63, 64 * k, v))
            yield from self.statements(w, ops, args, at, steps)

    # ---- fields and expressions

    def get(self, way, header, field):
        if field == "$valid$":
            return z3.BitVecVal(int(self.metadata[header] or bool(way.valid.get(header))), 1)
        v = way.fields.get((header, field))
        if v is None and header == "standard_metadata" and field.endswith("timestamp"):
            raise GivenUp("the clock")
        return z3.BitVecVal(0, self.width(header, field)) if v is None else v

    def put(self, way, header, field, value):
        if (header, field) in self.widths:
            way.fields[(header, field)] = fit(value, self.width(header, field))

    def assign(self, way, to, value):
        if to["type"] != "field" or to["value"][1] == "$valid$":
            raise GivenUp(f"an assignment to {to['type']}")
        self.put(way, *to["value"], self.wide(value))

    def wide(self, v):
        """A number of 256 bits; those of Program.value are of any width, and not below zero unless they have as many."""
        return fit(v, WIDE)

    def value(self, way, e, args):
        kind, v = e["type"], e.get("value")
        if kind == "field":
            if not isinstance(v[0], str):
                raise GivenUp("a field of a computed header")
            x = self.get(way, *v)
            return z3.simplify(z3.SignExt(WIDE - x.size(), x)) if tuple(v) in self.signed else x
        if kind == "lookahead":
            return self.ahead(way, *v)
        if kind == "hexstr":
            return z3.BitVecVal(int(v, 16), WIDE)
        if kind in ("bool", "runtime_data", "local", "expression"):
            return super().value(way, e, args)
        raise GivenUp(f"an operand of type {kind}")

    def operation(self, way, e, args):
        op = e["op"]
        if op == "?":
            c = truth(self.value(way, e["cond"], args))
            x, y = self.value(way, e["left"], args), self.value(way, e["right"], args)
            return z3.If(c, x, y) if z3.is_bool(x) and z3.is_bool(y) else z3.If(c, self.wide(x), self.wide(y))
        if op == "valid":
            if e["right"]["type"] != "header":
                raise GivenUp(f"validity of a {e['right']['type']}")
            return self.there(way, e["right"]["value"])
        if op in ("last_stack_index", "size_stack", "access_field", "access_union_header", "dereference_header_stack", "dereference_stack", "dereference_union_stack", "valid_union"):
            raise GivenUp(f"the operator {op}")
        right = self.value(way, e["right"], args)
        if op == "d2b":
            return truth(right)
        if op == "b2d":
            return fit(right, 1)
        if op == "not":
            return z3.Not(truth(right))
        if op == "~":
            return ~self.wide(right)
        left = e.get("left")
        if left is None:
            if op == "-":
                return -self.wide(right)
            raise GivenUp(f"the operator {op} of one operand")
        left = self.value(way, left, args)
        if op == "and":
            return z3.And(truth(left), truth(right))
        if op == "or":
            return z3.Or(truth(left), truth(right))
        x, y = self.wide(left), self.wide(right)
        if op in COMPARISON:
            return z3.simplify((UNSIGNED if positive(x) and positive(y) else COMPARISON)[op](x, y))
        if op == ">>":
            return z3.simplify(z3.LShR(x, y) if positive(x) else x >> y)
        if op in ARITHMETIC:
            return z3.simplify(ARITHMETIC[op](x, y))
        if op in ("two_comp_mod", "sat_cast", "usat_cast"):
            n = e["right"]["value"]
            n = int(n, 16) if isinstance(n, str) else None
            if n is None:
                raise GivenUp("a cast to a width that is not constant")
            if op == "two_comp_mod":
                return z3.simplify(z3.SignExt(WIDE - n, z3.Extract(n - 1, 0, x)))
            low, high = (0, (1 << n) - 1) if op == "usat_cast" else (-(1 << n - 1), (1 << n - 1) - 1)
            return z3.simplify(z3.If(x < low, z3.BitVecVal(low, WIDE), z3.If(x > high, z3.BitVecVal(high, WIDE), x)))
        raise GivenUp(f"the operator {op}")


COMPARISON = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b, ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def positive(x):
    """Whether a number is known not to be below zero. The solver knows more of operators without signs."""
    return z3.eq(z3.simplify(z3.Extract(WIDE - 1, WIDE - 1, x)), z3.BitVecVal(0, 1))


def words_of(parts):
    """The sum of the 16-bit words of some bits, which are filled up with zeros."""
    if not parts:
        return z3.BitVecVal(0, 64)
    whole = z3.Concat(*parts) if len(parts) > 1 else parts[0]
    if whole.size() % 16:
        whole = z3.Concat(whole, z3.BitVecVal(0, -whole.size() % 16))
    n = whole.size()
    return z3.simplify(sum((z3.ZeroExt(48, z3.simplify(z3.Extract(n - at - 1, n - at - 16, whole))) for at in range(0, n, 16)), z3.BitVecVal(0, 64)))


def folded(total):
    """The Internet checksum (RFC 1071) of a sum of fewer than 65,536 words."""
    for _ in range(3):
        total = (total & 0xFFFF) + z3.LShR(total, 16)
    return z3.simplify(~z3.Extract(15, 0, total))
