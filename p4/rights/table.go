package rights

// row is one line of the specification's table. It is about some kinds of packets. The first row of a packet's kind whose
// condition holds decides what becomes of the packet.
type row struct {
	name   string // for tests
	kinds  uint32 // a bit for each kind
	packet string
	when   string
	holds  func(*turn) bool
	then   string
	do     func(*turn) Verdict
}

func kinds(all ...Kind) (bits uint32) {
	for _, k := range all {
		bits |= 1 << k
	}
	return bits
}

const (
	everyKind = 1<<kindCount - 1
	answers   = 1<<AllocAnswer | 1<<MemoryAnswer
	ofCalls   = 1<<Call | 1<<Oneway | 1<<Reply | 1<<Exception | 1<<Ask
)

// In the texts n is the node that wants something, and c is a call's callee: n sends ALLOC, WRITE, FREE, READ, CALL, ONEWAY
// and ASK, and gets REPLY, EXCEPTION and answers of memory servers.
var table = []row{
	{
		"rebuilding", everyKind, "any", "the registers are being rebuilt",
		func(t *turn) bool { return t.Rebuilding }, "dropped, counted", drop,
	}, {
		"identity", everyKind, "any", "port and source have no identity, or another incarnation or boot than the header says",
		func(t *turn) bool { return t.id.Kind == 0 || t.id.Incarnation != t.p.Incarnation }, "dropped, counted", drop,
	}, {
		"kind", everyKind &^ (1 << Plain), "any but SETTLE, ledger, commit, rollback, forget", "its sender is no node, or, of an answer of memory, no memory server",
		func(t *turn) bool { return (t.id.Kind == Memory) != (answers>>t.p.Kind&1 == 1) || t.id.Kind == Daemon }, "dropped, counted", drop,
	}, {
		"alloc", kinds(Alloc), "ALLOC by n", "control rule for n, this machine and batch",
		func(t *turn) bool { return t.controls(t.id.Row) }, "passes, to all copies", passToAll,
	}, {
		"alloc-denied", kinds(Alloc), "", "else", always, "turned around: `permission denied`", denied,
	}, {
		"allocated", kinds(AllocAnswer), "OK answer to ALLOC, to n",
		"control rule for n, this machine and batch; the generation is above the word's", (*turn).allocates,
		"word = (generation, n, 0); passes; if half of the batch, or three quarters, lie before, and the rule says that this is to be told, a digest says so", (*turn).allocate,
	}, {
		"answered", kinds(AllocAnswer, MemoryAnswer), "answer of memory", "else", always, "passes", pass,
	}, {
		"write", kinds(Write, Free), "WRITE, FREE by n", "good, owner n, `lent` 0",
		func(t *turn) bool { return t.owns(t.p.Region) && t.words.at(t.p.Region.Slot).Lent == 0 },
		"passes, to all copies; FREE leaves the word as it is", passToAll,
	}, {
		"write-lent", kinds(Write, Free), "", "good, owner n",
		func(t *turn) bool { return t.owns(t.p.Region) }, "turned around: `lent`", lent,
	}, {
		"write-denied", kinds(Write, Free), "", "else", always, "turned around: `permission denied`", denied,
	}, {
		"read-own", kinds(Read), "READ by n", "it names no slot; good, owner n",
		func(t *turn) bool { return t.p.Ref == Ref{} && t.owns(t.p.Region) }, "passes", pass,
	}, {
		"read-by-slot", kinds(Read), "",
		"it names a slot; good; the slot is open, not *given*, has the number that it names, has callee n, and lists the region",
		func(t *turn) bool { return t.p.Ref != Ref{} && t.good(t.p.Region) && t.has(t.p.Ref, t.p.Region) }, "passes", pass,
	}, {
		"read-denied", kinds(Read), "", "else", always, "turned around: `permission denied`", denied,
	}, {
		"plain", kinds(Plain), "SETTLE, ledger, commit, rollback, forget", "always", always, "passes; its receiver decides", pass,
	}, {
		"no-slot", ofCalls, "CALL, ONEWAY, REPLY, EXCEPTION, ASK", "it names no slot and number",
		func(t *turn) bool { return t.p.Ref.Number == 0 }, "dropped, counted", drop,
	},

	{
		"call-malformed", kinds(Call, Oneway), "CALL, ONEWAY by n to c", "not one to four slots of one block, or more regions than a slot has room for",
		(*turn).malformed, "dropped, counted", drop,
	}, {
		"call-block", kinds(Call, Oneway), "", "no block rule for n",
		func(t *turn) bool { return !t.Blocks[BlockRule{t.id.Row, t.p.Ref.Slot / t.Block}] }, "dropped, counted", drop,
	}, {
		"call-number", kinds(Call, Oneway), "", "the number is of another incarnation than n's",
		func(t *turn) bool { return t.p.Ref.Number.Incarnation() != t.id.Incarnation }, "dropped, counted", drop,
	}, {
		"call-going", kinds(Call, Oneway), "", "*new*: its number is above that of each of its slots, none of them open; c has no row, or is going",
		func(t *turn) bool { return t.isNew() && t.gone() },
		"turned around: `unavailable`, *never begun*; the slots stay as they are", unavailable(true),
	}, {
		"call-refused", kinds(Call, Oneway), "",
		"new; a region is listed twice, or is not good, or is neither n's nor, of a CALL, listed by the parent of its slot; or such a parent is not open, " +
			"is *given* or *ending*, has another number or another callee than n",
		func(t *turn) bool { return t.isNew() && !t.mayLend() },
		"slots = (number, refused); turned around: `permission denied`", (*turn).refuse,
	}, {
		"call-lent", kinds(Call, Oneway), "", "new; a region of a ONEWAY is lent, or `lent` or the children of a parent are at their end",
		func(t *turn) bool { return t.isNew() && t.full() }, "turned around: `lent`; the slots stay as they are", lent,
	}, {
		"call-opens", kinds(Call), "CALL", "new",
		(*turn).isNew, "slots = (number, open, n, c, regions, parents); `lent` +1 for each region, children +1 for each slot's parent; passes", (*turn).open,
	}, {
		"oneway-opens", kinds(Oneway), "ONEWAY", "new",
		(*turn).isNew, "slots = (number, open, *given*, n, c, regions); the regions' owner is c; passes", (*turn).open,
	}, {
		"copy-refused", kinds(Call, Oneway), "CALL, ONEWAY", "a *copy*: all its slots have its number, and are one call's; refused",
		func(t *turn) bool { return t.isCopy() && t.first().State == Refused }, "turned around: `permission denied`", denied,
	}, {
		"copy-failed", kinds(Call, Oneway), "", "a copy; failed, or closed, and c has no row, or is going",
		func(t *turn) bool {
			return t.isCopy() && (t.first().State == Failed || t.first().State == Closed && t.gone())
		},
		"turned around: `unavailable`", unavailable(false),
	}, {
		"copy-differs", kinds(Call, Oneway), "", "a copy; c is not the callee, or a slot does not list what the packet lists for it",
		func(t *turn) bool { return t.isCopy() && !t.same() }, "dropped, counted", drop,
	}, {
		"copy", kinds(Call, Oneway), "", "a copy", (*turn).isCopy, "passes", pass,
	}, {
		"call-late", kinds(Call, Oneway), "", "else", always, "dropped, counted: it is late", drop,
	},

	{
		"answer-foreign", kinds(Reply, Exception), "REPLY, EXCEPTION by c to n",
		"the slot is not the first of a call that is open or closed, with this number, caller n and callee c; or it is of a standing lease",
		func(t *turn) bool { return !t.answers() }, "dropped, counted", drop,
	}, {
		"exception-results", kinds(Exception), "EXCEPTION", "it lists regions",
		func(t *turn) bool { return len(t.p.Results) > 0 }, "turned around: `permission denied`", denied,
	}, {
		"answer-children", kinds(Reply, Exception), "REPLY, EXCEPTION", "open; one of the call's slots has children",
		func(t *turn) bool { return t.first().State == Open && t.children(t.p.Ref.Slot) }, "turned around: `lent`", lent,
	}, {
		"answer-denied", kinds(Reply), "REPLY", "open; there are too many results, or one is not good, or its owner is neither c nor n",
		func(t *turn) bool { return t.first().State == Open && !t.mayReturn() }, "turned around: `permission denied`; the slots stay open", denied,
	}, {
		"answer-lent", kinds(Reply), "", "open; a result is c's, and lent",
		func(t *turn) bool { return t.first().State == Open && t.returnsLent() }, "turned around: `lent`", lent,
	}, {
		"given-back", kinds(Exception), "EXCEPTION", "open, *given*",
		func(t *turn) bool { return t.first().State == Open && t.first().Given },
		"all slots closed; each region that they list, that is good and owner c, is n's again, lent or not; passes", (*turn).giveBack,
	}, {
		"answer-closes", kinds(Reply, Exception), "REPLY, EXCEPTION", "open",
		func(t *turn) bool { return t.first().State == Open },
		"the results' owner is n, and the packet says which were n's already; all slots closed; `lent` −1 for each region that they list and " +
			"whose generation matches, if not *given*; children −1 for each slot's parent; passes", (*turn).closes,
	}, {
		"answer-copy", kinds(Reply, Exception), "", "closed; there are not too many results, each good, and owner n", (*turn).returned, "passes; the packet says that all results were n's already", (*turn).passAgain,
	}, {
		"answer-changed", kinds(Reply, Exception), "", "else", always, "turned around: `permission denied`", denied,
	},

	{
		"ask-failed", kinds(Ask), "ASK by n to c", "the slot has this number, and has failed",
		func(t *turn) bool { return t.first().Number == t.p.Ref.Number && t.first().State == Failed }, "turned around: `unavailable`", unavailable(false),
	}, {
		"ask-going", kinds(Ask), "", "c has no row, or is going, and the slot is not open with this number",
		func(t *turn) bool {
			return t.gone() && (t.first().Number != t.p.Ref.Number || t.first().State != Open)
		}, "turned around: `unavailable`", unavailable(false),
	}, {
		"ask", kinds(Ask), "", "else", always, "passes", pass,
	},
}

// rowsOf has the rows of each kind.
var rowsOf = func() (of [kindCount][]int) {
	for i := range table {
		for k := range kindCount {
			if table[i].kinds>>k&1 == 1 {
				of[k] = append(of[k], i)
			}
		}
	}
	return of
}()

// turn is the passage of one packet: the packet, and what the tables say of its ends.
type turn struct {
	*Switch
	p  *Packet
	id Identity // of the sender; the zero Identity if it has none
	to Route    // of the destination; the zero Route if it has none
}

// Judge says what becomes of a packet. All changes of registers are one step: of all the packet's slots, or of none.
func (s *Switch) Judge(p *Packet) Verdict {
	if p.Kind >= kindCount {
		return Verdict{}
	}
	t := turn{Switch: s, p: p, id: s.Identities[p.Source], to: s.Routes[p.To]}
	for _, i := range rowsOf[p.Kind] {
		if r := &table[i]; !s.without[i] && r.holds(&t) {
			s.counts[i]++
			v := r.do(&t)
			v.Row = r.name
			return v
		}
	}
	return Verdict{}
}

func always(*turn) bool { return true }

func drop(*turn) Verdict      { return Verdict{Action: Drop} }
func pass(*turn) Verdict      { return Verdict{Action: Pass} }
func passToAll(*turn) Verdict { return Verdict{Action: PassToAll} }
func denied(*turn) Verdict    { return Verdict{Action: TurnAround, Reason: PermissionDenied} }
func lent(*turn) Verdict      { return Verdict{Action: TurnAround, Reason: Lent} }

func unavailable(neverBegun bool) func(*turn) Verdict {
	return func(*turn) Verdict {
		return Verdict{Action: TurnAround, Reason: Unavailable, NeverBegun: neverBegun}
	}
}

// Line is a row of a table for people.
type Line struct{ Packet, When, Then string }

// Table returns the table of packets. A line without a packet is about the same packets as the line before it.
func Table() (lines []Line) {
	for i := range table {
		lines = append(lines, Line{table[i].packet, table[i].when, table[i].then})
	}
	return lines
}

// Count returns how often a row of the table of packets, or of the table of operations, has decided.
func (s *Switch) Count(name string) uint64 { return s.counts[rowNamed(name)] }

// Counts returns how often each row of both tables has decided, by the row's name.
func (s *Switch) Counts() map[string]uint64 {
	all := map[string]uint64{}
	for i := range table {
		all[table[i].name] = s.counts[i]
	}
	for i := range operations {
		all[operations[i].name] = s.counts[len(table)+i]
	}
	return all
}

// rowNamed finds a row in both tables. There must be one.
func rowNamed(name string) int {
	for i := range table {
		if table[i].name == name {
			return i
		}
	}
	for i := range operations {
		if operations[i].name == name {
			return len(table) + i
		}
	}
	panic("no row " + name)
}
