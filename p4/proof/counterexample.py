"""A broken theorem as a test case: table entries, a packet and what comes out, as an STF script.

Package p4/interp/stf runs such a script against any executor.
"""
import z3

from symbolic import DROP_PORT


class Case:
    """One path with one packet and one contents of the tables."""

    def __init__(self, program, path, model):
        self.program, self.path, self.model = program, path, model

    def number(self, expr):
        return self.model.eval(expr, model_completion=True).as_long()

    def script(self):
        p = self.path
        lines = []
        for t in p.tables:
            if t.hit:
                lines.append(self.entry(t))
        port = self.number(p.get("standard_metadata", "ingress_port"))
        lines += self.meters(port)
        lines += self.cells()
        for name, values in p.digests:
            fields = " ".join(f"{self.number(v):0{(v.size() + 7) // 8 * 2}x}" for v in values)
            lines.append(f"digest {name} {fields}")
        lines.append(f"packet {port} {self.packet()}")
        lines.append(f"expect {self.out()} {self.leaving()}$" if self.leaves() else "# dropped")
        lines += self.registers_after()
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
        """The meters' colours: of those that the path does not use, red."""
        used = {name: (self.number(index), self.number(colour)) for name, index, colour in self.path.meters}
        return [f"meter {m['name']} {used.get(m['name'], (port, 2))[0]} {used.get(m['name'], (port, 2))[1]}"
                for m in self.program.json["meter_arrays"]]

    def entry(self, t):
        keys = []
        for name, value in t.keys.items():
            n = self.number(value)
            kind = next(k["match_type"] for tab in self.tables() if tab["name"] == t.name for k in tab["key"] if k["name"] == name)
            keys.append(f"{name}:{n:#x}" + (f"/{value.size()}" if kind == "lpm" else ""))
        params = [f"{d['name']}:{self.number(v):#x}" for d, v in zip(t.action["runtime_data"], t.params)]
        return f"add {t.name} {' '.join(keys)} {t.action['name']}({', '.join(params)})"

    def tables(self):
        return [t for pl in self.program.json["pipelines"] for t in pl["tables"]]

    def header(self, header, get):
        out, width = 0, 0
        for f, w in self.program.headers[header]:
            out, width = out << w | self.number(get(header, f)), width + w
        return f"{out:0{width // 4}x}"

    def packet(self):
        """The packet that is sent; one that is too short ends where the parser gave up."""
        return "".join(self.header(h, lambda h, f: self.path.input[(h, f)]) for h in self.path.parsed)

    def out(self):
        return self.number(self.path.port)

    def leaves(self):
        return self.out() != DROP_PORT

    def leaving(self):
        """The packet that comes out."""
        return "".join(self.header(h, self.path.get) for h in self.program.deparsed if self.path.valid.get(h))


def nice(path):
    """Conditions that make a case easy to read; it need not fulfil them."""
    port = path.get("standard_metadata", "ingress_port")
    soft = [z3.Or(port == 510, z3.And(port >= 1, port <= 4))]
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
