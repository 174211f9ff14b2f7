package rights

import "net/netip"

// at is the address of a node or memory server of the tests.
func at(n int) netip.Addr { return addresses[n] }

// addresses are those of all nodes and servers of the tests: it takes time to make one.
var addresses = func() (all [1002]netip.Addr) {
	for i := range all {
		all[i] = netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)})
	}
	return all
}()

// rig is a switch with three nodes, rows and addresses 1 to 3, whose incarnations are 1, and a memory server, address 100,
// boot 1. Each node has the batch and the block of its row's number.
type rig struct {
	reporter
	*Switch
}

// reporter is a test, or what stands for one that has to fail.
type reporter interface {
	Helper()
	Error(...any)
	Errorf(string, ...any)
}

const memoryAt = 100

func newRig(t reporter, sizes Sizes, without ...string) rig {
	s := New(sizes)
	for n := 1; n <= 3; n++ {
		s.Identities[Source{uint16(n), at(n)}] = Identity{Node, Row(n), 1}
		s.Routes[at(n)] = Route{Row: Row(n)}
		s.Controls[Control{Row(n), 1, uint32(n)}] = true
		s.Blocks[BlockRule{Row(n), uint32(n)}] = true
	}
	s.Identities[Source{memoryAt, at(memoryAt)}] = Identity{Memory, 0, 1}
	s.Identities[Source{101, at(101)}] = Identity{Daemon, 0, 1}
	s.Election = 9
	for _, name := range without {
		s.without[rowNamed(name)] = true
	}
	return rig{t, s}
}

// region is a node's region of a place in its batch.
func (r rig) region(n, place, generation int) Region {
	return Region{uint32(n)*r.Batch + uint32(place), uint32(generation)}
}

// ref names a node's call slot of a place in its block, with the first incarnation's number.
func (r rig) ref(n, place, counter int) Ref {
	return Ref{uint32(n)*r.Block + uint32(place), MakeNumber(1, uint64(counter))}
}

// is checks what becomes of a packet, and that the registers agree afterwards.
func (r rig) is(what string, p Packet, want string) {
	r.Helper()
	before := r.picture()
	v := r.Judge(&p)
	if v.String() != want || v.Row == "" {
		r.Errorf("%s %v, want %s, by a row: %q", what, v, want, v.Row)
	}
	if err := r.step(before, &p, v); err != nil {
		r.Errorf("%s: %v", what, err)
	}
}

func from(n int, k Kind, to int) Packet {
	return Packet{Kind: k, Source: Source{uint16(n), at(n)}, To: at(to), Incarnation: 1, Machine: 1}
}

func memory(n int, k Kind, r Region) Packet {
	p := from(n, k, memoryAt)
	p.Region = r
	return p
}

func readBy(n int, r Region, by Ref) Packet {
	p := memory(n, Read, r)
	p.Ref = by
	return p
}

// allocated is a memory server's OK.
func allocated(to int, r Region) Packet {
	p := from(memoryAt, AllocAnswer, to)
	p.Region, p.OK = r, true
	return p
}

func call(n, c int, ref Ref, blocks ...Block) Packet {
	p := from(n, Call, c)
	p.Ref, p.Blocks = ref, blocks
	if len(blocks) == 0 {
		p.Blocks = make([]Block, 1)
	}
	return p
}

func oneway(n, c int, ref Ref, regions ...Region) Packet {
	p := call(n, c, ref, own(regions...))
	p.Kind = Oneway
	return p
}

func own(regions ...Region) Block { return Block{Regions: regions} }

func lentOn(parent Ref, regions ...Region) Block { return Block{parent, regions} }

func reply(c, n int, ref Ref, results ...Region) Packet {
	p := from(c, Reply, n)
	p.Ref, p.Results = ref, results
	return p
}

func about(c int, k Kind, n int, ref Ref) Packet {
	p := from(c, k, n)
	p.Ref = ref
	return p
}

// alloc gives a node a region.
func (r rig) alloc(n, place int) Region {
	r.Helper()
	g := r.region(n, place, int(r.Word(uint32(n)*r.Batch+uint32(place)).Generation)+1)
	r.is("a request to allocate", memory(n, Alloc, g), "passes to all copies")
	r.is("its answer", allocated(n, g), "passes")
	if r.Word(g.Slot) != (Word{g.Generation, Row(n), 0}) {
		r.Errorf("a new region has the word %+v", r.Word(g.Slot))
	}
	return g
}

// hand checks how an operation ends.
func (r rig) hand(what string, o Operation, want Outcome) Found {
	r.Helper()
	if o.Election == 0 {
		o.Election = r.Election
	}
	f := r.Do(&o)
	if err := r.Check(); f.Outcome != want || err != nil && !r.Rebuilding {
		r.Errorf("%s: outcome %d, want %d; %v", what, f.Outcome, want, err)
	}
	return f
}
