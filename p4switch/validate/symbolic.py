"""Symbolic execution of a compiled v1model program (p4c's JSON for bmv2).

Program.paths() runs the parser and the pipelines on a packet whose every field is
a variable, with tables whose contents are unknown, and yields one Path for each way
through the program. Together the paths' conditions cover all packets and all table
contents.

  packet   a bit vector for each field of each header; the ingress port; whether the
           packet is long enough for each header that the parser wants, or for what it looks ahead at.
           What it has seen ahead is in the header that it extracts then
  table    for a table T: uninterpreted functions of its key T.hit, T.action and one
           for each parameter of each action. Any contents, of any match kind, are
           such functions. A default action that may be set is a variable.
  register an array, whose contents at the start are unknown
  copies   a packet that goes to a multicast group is one of its copies: any replica
  opaque   what an action whose name begins with one of OPAQUE writes is any value: it is not followed

The end of ingress is that of simple_switch: digests take their values then, a packet
without a port and a group is dropped, and egress cannot choose another port.

A field of a header that is not there reads as any value: the specification leaves
it open. Arithmetic has 256 bits, which is more than any intermediate result of p4c
needs (it masks every result to its width).
"""
import json

import z3

WIDE = 256
DROP_PORT = 511
OPAQUE = ("BifrostIngress.rights.judge_", "BifrostIngress.rights.hand_")  # rights.py follows them


class Unsupported(Exception):
    """The program uses a feature that this checker does not know."""


class Path:
    """One way through the program, and what it has done to the packet."""

    def __init__(self, program):
        self.program = program
        self.conditions = []  # all of them hold on this path
        self.fields = {}      # (header, field) -> expression
        self.valid = {}       # header -> bool
        self.parsed = []      # headers in the order of the packet
        self.tables = []      # Applied, in order
        self.told = []        # ids of the learn lists of the digests that were asked for
        self.digests = []     # (name, expressions) of each digest: of the end of ingress
        self.registers = {}   # name -> array
        self.cells = []       # (name, index) of each register cell that was read or written
        self.counts = []      # (name, index) of each cell of a counter that counts the packet; None is that of the table's entry
        self.notes = []       # primitives that were met and are not followed: clones and the like
        self.skipped = []     # the actions that are not followed
        self.meters = []      # (name, index, colour) of each meter that was used
        self.input = {}       # (header, field) -> variable, of parsed headers
        self.ahead = None     # the word that the parser has seen ahead last, and not extracted yet
        self.seen = {}        # word -> variable, of each parser state that looks ahead
        self.short = None     # the header, or the word, that the parser wanted when the packet ended
        self.out = None       # the port at the end of ingress
        self.group = None     # the multicast group then; 0 is none
        self.first = None     # what verdicts.py has found out of the path
        self.asked = []       # its Entries: what tables say, whether or not the path applies them
        self.leaves = None    # at the end: the packet, or this copy of it, leaves

    def copy(self):
        p = Path(self.program)
        p.conditions, p.fields, p.valid = self.conditions[:], dict(self.fields), dict(self.valid)
        p.parsed, p.tables, p.digests, p.told = self.parsed[:], self.tables[:], self.digests[:], self.told[:]
        p.registers, p.notes, p.input, p.short = dict(self.registers), self.notes[:], self.input, self.short
        p.ahead, p.seen, p.skipped = self.ahead, self.seen, self.skipped
        p.meters, p.cells, p.counts = self.meters[:], self.cells[:], self.counts[:]
        p.out, p.group = self.out, self.group
        return p

    def start(self, register):
        """A register's contents before the packet: any."""
        return z3.Array(f"register.{register}", z3.BitVecSort(32), z3.BitVecSort(self.program.registers[register]["bitwidth"]))

    def get(self, header, field):
        if field == "$valid$":
            return z3.BitVecVal(1 if self.valid.get(header) else 0, 1)
        key = (header, field)
        if key not in self.fields:
            if header in self.program.headers and not self.program.metadata[header]:
                self.fields[key] = z3.BitVec(f"absent.{header}.{field}", self.program.width(header, field))
            else:
                self.fields[key] = z3.BitVecVal(0, self.program.width(header, field))
        return self.fields[key]

    def set(self, header, field, value):
        if field == "$valid$":
            raise Unsupported("validity assigned from a value")
        self.fields[(header, field)] = fit(value, self.program.width(header, field))

    def taken(self, table):
        """The Applied of a table, or None if the path does not apply it."""
        for t in self.tables:
            if t.name.endswith("." + table):
                return t
        return None


class Applied:
    """One application of a table: its key, and what it chose."""

    def __init__(self, name, keys, hit, action, params):
        self.name, self.keys, self.hit, self.action, self.params = name, keys, hit, action, params

    def key(self, name):
        return self.keys[name]


def fit(value, width):
    """value, cut or extended with zeros to a width."""
    if z3.is_bool(value):
        value = z3.If(value, z3.BitVecVal(1, 1), z3.BitVecVal(0, 1))
    n = value.size()
    if n == width:
        return value
    if n > width:
        return z3.simplify(z3.Extract(width - 1, 0, value))
    return z3.simplify(z3.ZeroExt(width - n, value))


def wide(value):
    return fit(value, WIDE)


def truth(value):
    return value if z3.is_bool(value) else z3.simplify(value != z3.BitVecVal(0, value.size()))


ARITHMETIC = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "&": lambda a, b: a & b,
    "|": lambda a, b: a | b, "^": lambda a, b: a ^ b, "<<": lambda a, b: a << b, ">>": z3.LShR,
}
COMPARISON = {"==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": z3.ULT, "<=": z3.ULE, ">": z3.UGT, ">=": z3.UGE}


class Program:
    """A compiled program."""

    def __init__(self, source, entries=None, given=(), opaque=()):
        self.entries = entries or {}  # what is supposed of parameters, of a path and any value: by the ends of the names of table and action, and the parameter
        self.given = given            # conditions that all packets fulfil
        self.opaque_names = OPAQUE + tuple(opaque)
        self.json = source if isinstance(source, dict) else json.load(open(source, encoding="utf-8"))
        types = {t["name"]: t for t in self.json["header_types"]}
        self.headers, self.metadata = {}, {}
        for h in self.json["headers"]:
            fields = types[h["header_type"]]["fields"]
            if any(f[1] == "*" for f in fields):
                raise Unsupported(f"varbit field in {h['name']}")
            self.headers[h["name"]] = [(f[0], f[1]) for f in fields]
            self.metadata[h["name"]] = h["metadata"]
        self.widths = {(h, f): w for h, fields in self.headers.items() for f, w in fields}
        self.actions = {a["id"]: a for a in self.json["actions"]}
        self.learn = {l["id"]: l for l in self.json["learn_lists"]}
        self.registers = {r["name"]: r for r in self.json["register_arrays"]}
        self.errors = {name: number for name, number in self.json["errors"]}
        self.deparsed = self.json["deparsers"][0]["order"]
        self.fresh = 0
        for feature in ("header_stacks", "header_unions", "parse_vsets"):
            if self.json.get(feature):
                raise Unsupported(feature)

    def width(self, header, field):
        return self.widths[(header, field)]

    def unknown(self, name, width):
        """A value of which nothing is known."""
        self.fresh += 1
        return z3.BitVec(f"{name}#{self.fresh}", width)

    def unused(self, meter):
        """What a meter would say that a path does not ask."""
        return z3.BitVec(f"unused.{meter.rpartition('.')[2]}", 8)

    # ---- parser

    def paths(self):
        """All ways through the program, each made when it is asked for."""
        start = Path(self)
        port = z3.BitVec("ingress_port", 9)
        start.fields[("standard_metadata", "ingress_port")] = port
        start.conditions.append(port != DROP_PORT)
        start.fields[("standard_metadata", "packet_length")] = z3.BitVec("packet_length", 32)
        states = {s["name"]: s for s in self.json["parsers"][0]["parse_states"]}
        start.conditions += self.given
        for p in self.parse(start, states, self.json["parsers"][0]["init_state"]):
            if self.given and not feasible(p):
                continue
            for q in self.control("ingress", p):
                for leaving, r in self.end_of_ingress(q):
                    for end in self.control("egress", r) if leaving else [r]:
                        spec = end.get("standard_metadata", "egress_spec")
                        end.leaves = z3.simplify(z3.And(z3.Or(end.group != 0, end.out != DROP_PORT), spec != DROP_PORT))
                        yield end

    def end_of_ingress(self, path):
        """The ways on when ingress has decided: (whether egress follows, path)."""
        path.out, path.group = path.get("standard_metadata", "egress_spec"), path.get("standard_metadata", "mcast_grp")
        for told in path.told:
            learn = self.learn[told]
            path.digests = path.digests + [(learn["name"], [self.value(path, e, []) for e in learn["elements"]])]
        dropped = z3.simplify(z3.And(path.out == DROP_PORT, path.group == 0))
        for leaving, condition in ((False, dropped), (True, z3.simplify(z3.Not(dropped)))):
            p = path.copy()
            if not z3.is_true(condition):
                p.conditions.append(condition)
            if not z3.is_false(condition) and feasible(p):
                yield leaving, self.replicated(p) if leaving else p

    def replicated(self, path):
        """The path with what egress sees: any replica of a packet that goes to a multicast group."""
        group = path.group != 0
        for field, value in (("egress_rid", z3.BitVecVal(0, 16)), ("egress_port", path.out)):
            any_replica = z3.BitVec(f"replica.{field}", value.size())
            path.set("standard_metadata", field, z3.simplify(z3.If(group, any_replica, value)))
        path.set("standard_metadata", "egress_spec", z3.BitVecVal(0, 9))
        return path

    def parse(self, path, states, name, depth=0):
        if depth > 64:
            raise Unsupported("a parser with a loop")
        if name is None:
            yield path
            return
        state = states[name]
        for op in state["parser_ops"]:
            if op["op"] == "extract":
                header = op["parameters"][0]["value"]
                yield self.too_short(path, header)
                path.valid[header] = True
                path.parsed = path.parsed + [header]
                path.input = dict(path.input)
                for field, width in self.headers[header]:
                    v = z3.BitVec(f"{header}.{field}", width)
                    path.fields[(header, field)] = path.input[(header, field)] = v
                self.extract_seen(path, header)
            elif op["op"] == "set" and op["parameters"][1]["type"] == "lookahead":
                target, (offset, width) = op["parameters"][0], op["parameters"][1]["value"]
                if offset != 0 or path.ahead is not None:
                    raise Unsupported("a lookahead but at what comes next, or two of them")
                word = f"ahead.{name}"
                yield self.too_short(path, word)
                path.ahead, path.seen = z3.BitVec(word, width), {**path.seen, word: z3.BitVec(word, width)}
                path.set(*target["value"], path.ahead)
            elif op["op"] == "set":
                target, value = op["parameters"]
                path.set(*target["value"], self.value(path, value, {}))
            else:
                raise Unsupported(f"parser operation {op['op']}")
        keys = []
        for k in state["transition_key"]:
            if k["type"] != "field":
                raise Unsupported(f"transition on {k['type']}")
            keys.append(path.get(*k["value"]))
        key = z3.Concat(*keys) if len(keys) > 1 else keys[0] if keys else None
        for t in state["transitions"]:
            taken = path.copy()
            if t["type"] == "default":
                yield from self.parse(taken, states, t["next_state"], depth + 1)
                return
            value = z3.BitVecVal(int(t["value"], 16), key.size())
            mask = z3.BitVecVal(int(t["mask"], 16) if t["mask"] else -1, key.size())
            match = z3.simplify(key & mask == value & mask)
            taken.conditions.append(match)
            yield from self.parse(taken, states, t["next_state"], depth + 1)
            path.conditions.append(z3.Not(match))
        path.fields[("standard_metadata", "parser_error")] = z3.BitVecVal(self.errors["NoMatch"], 32)
        yield path

    def too_short(self, path, wanted):
        """The path of a packet that ends within what the parser wants."""
        short = path.copy()
        short.short = wanted
        short.fields[("standard_metadata", "parser_error")] = z3.BitVecVal(self.errors["PacketTooShort"], 32)
        return short

    def extract_seen(self, path, header):
        """A header that is extracted begins with what the parser has seen ahead."""
        if path.ahead is None:
            return
        fields = [path.input[(header, f)] for f, _ in self.headers[header]]
        whole = z3.Concat(*fields) if len(fields) > 1 else fields[0]
        if whole.size() < path.ahead.size():
            raise Unsupported("a lookahead beyond the next header")
        path.conditions.append(z3.simplify(z3.Extract(whole.size() - 1, whole.size() - path.ahead.size(), whole) == path.ahead))
        path.ahead = None

    # ---- controls

    def control(self, name, path):
        pipeline = next(p for p in self.json["pipelines"] if p["name"] == name)
        nodes = {t["name"]: ("table", t) for t in pipeline["tables"]}
        nodes.update({c["name"]: ("conditional", c) for c in pipeline["conditionals"]})
        todo = [(path, pipeline["init_table"])]
        while todo:
            path, node = todo.pop()
            if node is None:
                yield path
                continue
            kind, n = nodes[node]
            if kind == "conditional":
                cond = z3.simplify(truth(self.value(path, n["expression"], {})))
                for branch, c in (("true_next", cond), ("false_next", z3.simplify(z3.Not(cond)))):
                    if z3.is_false(c):
                        continue
                    p = path.copy()
                    if not z3.is_true(c):
                        p.conditions.append(c)
                    if feasible(p):
                        todo.append((p, n[branch]))
            else:
                todo.extend(self.apply(path, n))

    def apply(self, path, table):
        """The ways on from a table: (path, next node)."""
        keys, ends = {}, []
        path.counts = path.counts + [(c["name"], None) for c in self.json["counter_arrays"]
                                     if c["is_direct"] and c["binding"] == table["name"] and table["with_counters"]]
        for k in table["key"]:
            if k["target"][1] == "$valid$" or k["match_type"] == "valid":
                keys[k["name"]] = path.get(k["target"][0], "$valid$")
            else:
                keys[k["name"]] = path.get(*k["target"])
        sorts = [v.sort() for v in keys.values()]
        args = list(keys.values())
        miss = path.copy()
        if keys:
            hit = z3.Function(f"{table['name']}.hit", *sorts, z3.BoolSort())(*args)
            miss.conditions.append(z3.Not(hit))
            chosen = z3.Function(f"{table['name']}.action", *sorts, z3.BitVecSort(16))(*args)
            for action in self.choices(table):
                p = path.copy()
                p.conditions += [hit, chosen == action]
                params = [self.parameter(p, table, action, d, sorts, args) for d in self.actions[action]["runtime_data"]]
                p.tables.append(Applied(table["name"], keys, True, self.actions[action], params))
                ends += self.run(p, table, action, params, "__HIT__")
        default = table["default_entry"]
        if default.get("action_const", False) or not keys:
            params = [z3.BitVecVal(int(v, 16), d["bitwidth"]) for v, d in
                      zip(default["action_data"], self.actions[default["action_id"]]["runtime_data"])]
            options = [(default["action_id"], params)]
        else:
            options = [(a, [z3.BitVec(f"{table['name']}.default.{d['name']}", d["bitwidth"]) for d in self.actions[a]["runtime_data"]])
                       for a in table["action_ids"]]
        for action, params in options:
            p = miss.copy()
            if keys:
                p.tables.append(Applied(table["name"], keys, False, self.actions[action], params))
            ends += self.run(p, table, action, params, "__MISS__")
        return ends

    def parameter(self, path, table, action, d, sorts, args):
        """A parameter of the entry that a key hits: any value, or what is supposed of it."""
        name = self.actions[action]["name"]
        value = self.entries.get((table["name"].rpartition(".")[2], name.rpartition(".")[2], d["name"]))
        free = z3.Function(f"{table['name']}.{name}.{d['name']}", *sorts, z3.BitVecSort(d["bitwidth"]))(*args)
        return value(path, free) if value else free

    def choices(self, table):
        """The actions that an entry may have; that of a const default only may not."""
        default = table["default_entry"]
        only = {default["action_id"]} if default.get("action_const") and self.actions[default["action_id"]]["name"] == "NoAction" else set()
        return [a for a in table["action_ids"] if a not in only] or table["action_ids"]

    def opaque(self, path, ops):
        """What an action that is not followed may have done."""
        for op in ops:
            to = op["parameters"][0] if op["op"] in ("assign", "register_read") else None
            if to is not None and to["type"] == "field":
                path.set(*to["value"], self.unknown("opaque", self.width(*to["value"])))
            elif op["op"] == "register_write":
                name = op["parameters"][0]["value"]
                self.fresh += 1
                path.registers = {**path.registers, name: z3.Array(f"opaque#{self.fresh}", z3.BitVecSort(32), z3.BitVecSort(self.registers[name]["bitwidth"]))}
            elif op["op"] not in ("_jump", "_jump_if_zero"):
                raise Unsupported(f"{op['op']} in an action that is not followed")

    def run(self, path, table, action, params, outcome):
        if self.actions[action]["name"].startswith(self.opaque_names):
            path.skipped = path.skipped + [self.actions[action]["name"].rpartition(".")[2]]
            self.opaque(path, self.actions[action]["primitives"])
            return [(path, table["next_tables"].get(outcome, table["next_tables"].get(self.actions[action]["name"], table["base_default_next"])))]
        follow = table["next_tables"].get(outcome, table["next_tables"].get(self.actions[action]["name"], table["base_default_next"]))
        return [(p, None if ended else follow) for p, ended in self.primitives(path, self.actions[action]["primitives"], params, 0)]

    # ---- actions

    def primitives(self, path, ops, params, at):
        """Runs an action from a primitive on: (path, whether it exits)."""
        while at < len(ops):
            op, a = ops[at]["op"], ops[at]["parameters"]
            at += 1
            if op == "assign":
                if a[0]["type"] != "field":
                    raise Unsupported(f"assignment to {a[0]['type']}")
                path.set(*a[0]["value"], self.value(path, a[1], params))
            elif op == "add_header":
                path.valid = {**path.valid, a[0]["value"]: True}
            elif op == "remove_header":
                path.valid = {**path.valid, a[0]["value"]: False}
            elif op == "assign_header":
                path.valid = {**path.valid, a[0]["value"]: path.valid.get(a[1]["value"], False)}
                for field, _ in self.headers[a[0]["value"]]:
                    path.set(a[0]["value"], field, path.get(a[1]["value"], field))
            elif op == "mark_to_drop":
                path.set("standard_metadata", "egress_spec", z3.BitVecVal(DROP_PORT, 9))
                path.set("standard_metadata", "mcast_grp", z3.BitVecVal(0, 16))
            elif op == "exit":
                return [(path, True)]
            elif op == "generate_digest":
                path.told = path.told + [int(a[1]["value"], 16)]
            elif op == "register_read":
                name = a[1]["value"]
                index = fit(self.value(path, a[2], params), 32)
                path.cells = path.cells + [(name, index)]
                path.set(*a[0]["value"], z3.Select(self.register(path, name), index))
            elif op == "register_write":
                name = a[0]["value"]
                index = fit(self.value(path, a[1], params), 32)
                value = fit(self.value(path, a[2], params), self.registers[name]["bitwidth"])
                path.cells = path.cells + [(name, index)]
                path.registers = {**path.registers, name: z3.Store(self.register(path, name), index, value)}
            elif op in ("_jump", "_jump_if_zero"):
                to = int(a[-1]["value"], 16)
                if op == "_jump":
                    at = to
                    continue
                cond = truth(self.value(path, a[0], params))
                zero, other = path.copy(), path.copy()
                zero.conditions.append(z3.Not(cond))
                other.conditions.append(cond)
                out = []
                for p, n in ((zero, to), (other, at)):
                    if feasible(p):
                        out += self.primitives(p, ops, params, n)
                return out
            elif op in ("execute_meter", "modify_field_rng_uniform"):
                target = a[2]["value"] if op == "execute_meter" else a[0]["value"]
                value = self.unknown(op, self.width(*target))
                path.set(*target, value)
                if op == "execute_meter":
                    index = fit(self.value(path, a[1], params), 32)
                    path.meters = path.meters + [(a[0]["value"], index, value)]
                else:
                    path.notes = path.notes + [op]
            elif op == "count":
                path.counts = path.counts + [(a[0]["value"], fit(self.value(path, a[1], params), 32))]
            elif op == "log_msg":
                pass
            elif op in ("clone_ingress_pkt_to_egress", "clone_egress_pkt_to_egress", "resubmit", "recirculate"):
                path.notes = path.notes + [op]
            else:
                raise Unsupported(f"primitive {op}")
        return [(path, False)]

    def register(self, path, name):
        if name not in path.registers:
            path.registers = {**path.registers, name: path.start(name)}
        return path.registers[name]

    # ---- expressions

    def value(self, path, e, params):
        kind, v = e["type"], e.get("value")
        if kind == "field":
            return path.get(*v)
        if kind == "hexstr":
            n = int(v, 16)
            return z3.BitVecVal(n, WIDE if n < 0 else max(1, n.bit_length()))
        if kind == "bool":
            return z3.BoolVal(v)
        if kind in ("runtime_data", "local"):
            return params[v]
        if kind == "expression":
            return self.operation(path, v, params) if "op" in v else self.value(path, v, params)
        raise Unsupported(f"operand {kind}")

    def operation(self, path, e, params):
        op = e["op"]
        if op == "?":
            cond = truth(self.value(path, e["cond"], params))
            left, right = self.value(path, e["left"], params), self.value(path, e["right"], params)
            return z3.If(cond, wide(left), wide(right))
        right = self.value(path, e["right"], params)
        if op == "d2b":
            return truth(right)
        if op == "b2d":
            return fit(right, 1)
        if op == "not":
            return z3.Not(truth(right))
        if op == "valid":
            return z3.BoolVal(bool(path.valid.get(e["right"]["value"])))
        if op == "~":
            return ~wide(right)
        left = self.value(path, e["left"], params)
        if op == "and":
            return z3.And(truth(left), truth(right))
        if op == "or":
            return z3.Or(truth(left), truth(right))
        if op in COMPARISON:
            return z3.simplify(COMPARISON[op](wide(left), wide(right)))
        if op in ARITHMETIC:
            return z3.simplify(ARITHMETIC[op](wide(left), wide(right)))
        raise Unsupported(f"operator {op}")


KNOWN = {}  # what feasible has found, by Z3's numbers of the conditions, which stay theirs while the conditions are kept


def feasible(path):
    """Whether any packet and table contents take the path. A mutant has most of its paths in common with the others."""
    key = tuple(c.get_id() for c in path.conditions)
    if key not in KNOWN:
        s = z3.SimpleSolver()  # starts ten times as fast as the general one
        s.add(*path.conditions)
        KNOWN[key] = path.conditions[:], s.check() != z3.unsat
    return KNOWN[key][1]
