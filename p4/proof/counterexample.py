"""A broken theorem as a test case: table entries, a packet and what comes out, as an STF script.

Package p4switch/interp/stf runs such a script against any executor.
"""
import z3

from symbolic import Applied


class Case:
    """One path with one packet and one contents of the tables."""

    def __init__(self, program, path, model):
        self.program, self.path, self.model = program, path, model

    def number(self, expr):
        return self.model.eval(expr, model_completion=True).as_long()

    def script(self):
        p = self.path
        entries = self.others() + [self.entry(t) for t in p.tables if t.hit]
        lines = list({line.split("(")[0]: line for line in entries}.values())
        port = self.number(p.get("standard_metadata", "ingress_port"))
        lines += self.meters(port)
        lines += self.cells()
        lines += self.copies()
        lines += ["digest none"] if not p.digests else []
        for name, values in p.digests:
            fields = " ".join(f"{self.number(v):0{(v.size() + 7) // 8 * 2}x}" for v in values)
            lines.append(f"digest {name} {fields}")
        lines.append(f"packet {port} {self.packet()}")
        lines.append(f"expect {self.out()} {self.leaving()}$" if self.leaves() else "# dropped")
        lines += self.registers_after() + self.counted()
        return "\n".join(lines) + "\n"

    def cells(self):
        """What the registers have before the packet, where the path looks or writes."""
        cells = {(name, self.number(index)) for name, index in self.path.cells}
        return [f"register_write {name} {i} {self.number(z3.Select(self.path.start(name), i))}" for name, i in sorted(cells)]

    def registers_after(self):
        """What they have afterwards."""
        cells = {(name, self.number(index)) for name, index in self.path.cells}
        return [f"register {name} {i} {self.number(z3.Select(self.path.registers[name], i))}" for name, i in sorted(cells) if name in self.path.registers]

    def meters(self, port):
        """The meters' colours."""
        used = {name: (self.number(index), self.number(colour)) for name, index, colour in self.path.meters}
        of = {m["name"]: used.get(m["name"]) or (port, 2 * (self.number(self.program.unused(m["name"])) == 2)) for m in self.program.json["meter_arrays"]}
        return [f"meter {name} {index} {colour}" for name, (index, colour) in of.items()]

    def copies(self):
        """The replica that the path follows."""
        p = self.path
        lines = []
        if self.number(p.group):
            rid, to = (self.number(p.get("standard_metadata", f)) for f in ("egress_rid", "egress_port"))
            lines += [f"mc_mgrp_create {self.number(p.group)}", f"mc_node_create {rid} {to}", f"mc_node_associate {self.number(p.group)} 0"]
        return lines

    def counted(self):
        """What the counters have afterwards: the cells that count the packet, and all cells together."""
        lines = []
        for c in self.program.json["counter_arrays"]:
            if not c["is_direct"]:
                cells = [self.number(index) for name, index in self.path.counts if name == c["name"]]
                lines += [f"counter {c['name']} {i} {cells.count(i)}" for i in sorted(set(cells))] + [f"counter {c['name']} * {len(cells)}"]
        return lines

    def entry(self, t):
        keys = []
        for name, value in t.keys.items():
            n = self.number(value)
            kind = next(k["match_type"] for tab in self.tables() if tab["name"] == t.name for k in tab["key"] if k["name"] == name)
            keys.append(f"{name}:{n:#x}" + (f"/{value.size()}" if kind == "lpm" else ""))
        params = [f"{d['name']}:{self.number(v):#x}" for d, v in zip(t.action["runtime_data"], t.params)]
        return f"add {t.name} {' '.join(keys)} {t.action['name']}({', '.join(params)})"

    def others(self):
        """What the tables say where a theorem asks them, and the path does not."""
        lines = []
        for e in self.path.asked:
            if z3.is_true(self.model.eval(e.hit, model_completion=True)):
                chosen = self.number(e.of("action", z3.BitVecSort(16)))
                action = self.program.actions[chosen if chosen in e.table["action_ids"] else e.table["action_ids"][0]]
                params = [e.of(f"{action['name']}.{d['name']}", z3.BitVecSort(d["bitwidth"])) for d in action["runtime_data"]]
                keys = {k["name"]: value for k, value in zip(e.table["key"], e.key)}
                lines.append(self.entry(Applied(e.table["name"], keys, True, action, params)))
        return lines

    def tables(self):
        return [t for pl in self.program.json["pipelines"] for t in pl["tables"]]

    def header(self, header, get):
        out, width = 0, 0
        for f, w in self.program.headers[header]:
            out, width = out << w | self.number(get(header, f)), width + w
        return f"{out:0{width // 4}x}"

    def packet(self):
        """The packet that is sent; one that is too short ends where the parser gave up. What the parser has only looked at stands behind."""
        return "".join(self.header(h, lambda h, f: self.path.input[(h, f)]) for h in self.path.parsed) + self.rest()

    def rest(self):
        """What the parser has seen ahead and not extracted: it leaves as it came, behind the headers."""
        ahead = self.path.ahead
        return "" if ahead is None else f"{self.number(ahead):0{ahead.size() // 4}x}"

    def out(self):
        """The port that the packet, or the copy that the path follows, leaves by."""
        return self.number(z3.If(self.path.group != 0, self.path.get("standard_metadata", "egress_port"), self.path.out))

    def leaves(self):
        return z3.is_true(self.model.eval(self.path.leaves, model_completion=True))

    def leaving(self):
        """The packet that comes out."""
        return "".join(self.header(h, self.path.get) for h in self.program.deparsed if self.path.valid.get(h)) + self.rest()


def nice(path):
    """Conditions that make a case easy to read; it need not fulfil them."""
    port = path.get("standard_metadata", "ingress_port")
    replica, rid = (path.get("standard_metadata", f) for f in ("egress_port", "egress_rid"))
    soft = [z3.Or(port == 510, z3.And(port >= 1, port <= 4)), z3.And(replica >= 1, replica <= 4, replica != port), z3.And(rid >= 5, rid <= 9)]
    for (_, field), v in path.input.items():
        if field == "hop_limit":
            soft.append(v == 64)
        elif field in ("floor", "branch", "index", "execution", "parent", "checksum", "payload_length", "flow_label", "traffic_class"):
            soft.append(v == 0)
    soft += [z3.Or(colour == 0, colour == 2) for _, _, colour in path.meters]
    for t in path.tables:
        for d, v in zip(t.action["runtime_data"], t.params):
            if d["name"] == "port":
                soft.append(z3.And(v >= 1, v <= 4))
    return soft
