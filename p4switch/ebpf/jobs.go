//go:build linux

package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/trace"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// A packet of which there is more than one copy, or that runs through the
// program again, leaves the straight way:
//
//	begin ▶ parse ▶ ingress ──▶ egress ──▶ deparse ▶ send      the straight way
//	                   │           │
//	                   ▼           ▼
//	                 fork     forkEgress
//	                   └─────┬─────┘ jobs
//	                         ▼
//	   ┌── step: take a job from the stack ◀── bpf_loop
//	   │     clone ▶ parse again ▶ a job for its replicas
//	   │     resubmitted, recirculated ▶ parse ▶ ingress ▶ fork
//	   │     replica ▶ egress ▶ forkEgress, or output
//	   └── output: deparse ▶ send a clone of the frame
//
// A job is what a copy has of its own (state.go), in a slot of a per-CPU stack.
// All copies share the frame's tail, which is what lies behind the first bytes
// that the program can look at. An output writes everything before the tail, and
// so may follow any other. The last copy is the frame itself; the kernel clones
// it for the others.
const (
	jobKind  = 0  // what to do
	jobNext  = 8  // the next replica of the list
	jobState = 16 // the packet's own part of the state
)

// The kinds of jobs.
const (
	jobEgress      = iota // the packet goes to egress
	jobMulticast          // copies of the packet, one for each of the list, go to egress
	jobReplicas           // the same, of a clone
	jobOutput             // the packet is deparsed and sent
	jobCloneI             // make an ingress clone of the packet, for the list
	jobCloneE             // make an egress clone of the packet, for the list
	jobResubmit           // the packet as it came goes to the parser
	jobRecirculate        // the packet as it leaves goes to the parser
)

const (
	// maxJobs is how deep the stack is. A copy's copies are made before its
	// siblings, so the depth is that of copies of copies, not their number.
	maxJobs = 16
	// maxCopies bounds what one packet may become; a program that clones its
	// clones, or recirculates for ever, loses the rest. One step takes about a
	// microsecond, during which the CPU does nothing else.
	maxCopies = 1 << 11 // more than maxReplicas
)

// Instance types of packets, as bmv2 counts them.
const (
	instanceClone       = 1
	instanceEgressClone = 2
	instanceRecirculate = 4
	instanceReplication = 5
	instanceResubmit    = 6
)

// forks are the statements of a program that make more of a packet than one.
type forks struct{ multicast, clone, resubmit, recirculate, truncate bool }

func (f forks) any() bool { return f != forks{} }

// again tells whether packets may run through the parser again.
func (f forks) again() bool { return f.resubmit || f.recirculate }

// forksOf finds the statements of a program that make copies.
func forksOf(p *v1model.Program) (f forks) {
	for s := range statements(p) {
		switch s := s.(type) {
		case v1model.Assign:
			to, ok := s.Dst.(v1model.FieldValue)
			f.multicast = f.multicast || ok && p.Std.MulticastGroup.Valid() && to.Ref == p.Std.MulticastGroup
		case v1model.Clone:
			f.clone = true
		case v1model.Resubmit:
			f.resubmit = true
		case v1model.Recirculate:
			f.recirculate = true
		case v1model.Truncate:
			f.truncate = true
		}
	}
	return f
}

// keptSize is the room for the fields of the largest field list.
func keptSize(p *v1model.Program) int {
	most := 0
	for _, l := range p.FieldLists {
		n := 0
		for _, f := range l.Fields {
			n += 8 * words(f.Width())
		}
		most = max(most, n)
	}
	return most
}

// order notes what the program wants to become of the packet.
func (g *gen) order(s v1model.Stmt) {
	list := func(at int, l *v1model.FieldList, plus int) {
		for i, have := range g.prog.FieldLists {
			if have == l {
				g.storeImm(at, int32(i+plus), asm.DWord)
			}
		}
	}
	switch s := s.(type) {
	case v1model.Clone:
		g.num(s.Session, 0)
		g.emit(asm.And.Imm(asm.R0, maxSession), asm.Add.Imm(asm.R0, 1))
		g.store(stSession, asm.R0)
		list(stKeep, s.Fields, 0)
	case v1model.Resubmit:
		list(stAgain, s.Fields, 1)
	case v1model.Recirculate:
		list(stRound, s.Fields, 1)
	case v1model.Truncate:
		g.truncate(s)
	}
}

// truncate notes the packet's longest length; the least counts.
func (g *gen) truncate(s v1model.Truncate) {
	short, set, end := g.label("short"), g.label("limit"), g.label("limited")
	g.num(s.Length, 0)
	g.emit(asm.JLT.Imm(asm.R0, maxFrame, short), asm.Mov.Imm(asm.R0, maxFrame))
	g.mark(short)
	g.emit(asm.Add.Imm(asm.R0, 1))
	g.load(asm.R1, stLimit)
	g.emit(asm.JEq.Imm(asm.R1, 0, set), asm.JLE.Reg(asm.R1, asm.R0, end))
	g.mark(set)
	g.store(stLimit, asm.R0)
	g.mark(end)
}

// clearOrders forgets what was to become of a packet.
func (g *gen) clearOrders() {
	if !g.forks.any() {
		return
	}
	g.set(asm.R0, 0)
	for _, at := range []int{stSession, stAgain, stRound, stLimit} {
		g.store(at, asm.R0)
	}
}

// unlessStraight goes to a label if ingress has asked for more than one copy.
func (g *gen) unlessStraight(to string) {
	if g.forks.clone {
		g.load(asm.R0, stSession)
		g.emit(asm.JNE.Imm(asm.R0, 0, to))
	}
	if g.forks.resubmit {
		g.load(asm.R0, stAgain)
		g.emit(asm.JNE.Imm(asm.R0, 0, to))
	}
	if g.forks.multicast {
		g.load(asm.R0, fieldAt(g, g.prog.Std.MulticastGroup))
		g.emit(asm.JNE.Imm(asm.R0, 0, to))
	}
}

// unlessLast goes to a label if the packet is not simply sent after egress.
func (g *gen) unlessLast(to string) {
	for _, asked := range []struct {
		at int
		on bool
	}{{stSession, g.forks.clone}, {stRound, g.forks.recirculate}, {stLimit, g.forks.truncate}} {
		if asked.on {
			g.load(asm.R0, asked.at)
			g.emit(asm.JNE.Imm(asm.R0, 0, to))
		}
	}
}

// fork makes jobs of a packet at the end of ingress. What is truncated takes the
// shared tail away, so a clone, which may be, lies below its original.
func (g *gen) fork() {
	done := g.label("forked")
	g.reserveClone()
	if g.forks.resubmit {
		not := g.label("not_again")
		g.load(asm.R0, stAgain)
		g.emit(asm.JEq.Imm(asm.R0, 0, not))
		g.noteName(trace.Copy, "resubmit")
		g.pushOriginal(jobResubmit)
		g.jump(done)
		g.mark(not)
	}
	if g.forks.multicast {
		not := g.label("not_multicast")
		g.load(asm.R0, fieldAt(g, g.prog.Std.MulticastGroup))
		g.emit(asm.JEq.Imm(asm.R0, 0, not))
		g.findReplicas(done)
		g.copyReplicas(done)
		g.pushOriginal(jobMulticast)
		g.jump(done)
		g.mark(not)
	}
	g.load(asm.R0, fieldAt(g, g.prog.Std.EgressSpec))
	g.ifDropped("ingress", done)
	g.store(stOutPort, asm.R0)
	g.pushOriginal(jobEgress)
	g.mark(done)
	g.pushClone(jobCloneI)
}

// forkEgress makes jobs of a packet at the end of egress.
func (g *gen) forkEgress() {
	done := g.label("forked")
	g.reserveClone()
	g.load(asm.R0, fieldAt(g, g.prog.Std.EgressSpec))
	g.ifDropped("egress", done)
	if g.forks.recirculate {
		not := g.label("not_round")
		g.load(asm.R0, stRound)
		g.emit(asm.JEq.Imm(asm.R0, 0, not))
		g.noteName(trace.Copy, "recirculate")
		g.pushOriginal(jobRecirculate)
		g.jump(done)
		g.mark(not)
	}
	g.pushOriginal(jobOutput)
	g.mark(done)
	g.pushClone(jobCloneE)
}

// reserveClone looks for the session to clone to. If there is one, rTemp is 1 and
// the session's list is in the slot at the stack's top, which is the clone's; the
// original goes into the slot above. Else rTemp is 0.
func (g *gen) reserveClone() {
	g.storeImm(stMore, 0, asm.DWord)
	g.set(rTemp, 0)
	if !g.forks.clone {
		return
	}
	none := g.label("no_clone")
	g.load(asm.R0, stSession)
	g.emit(asm.JEq.Imm(asm.R0, 0, none), asm.Sub.Imm(asm.R0, 1), asm.Or.Imm(asm.R0, sessionKey))
	g.findReplicas(none)
	g.copyReplicas(none)
	g.set(rTemp, 1)
	g.mark(none)
}

// pushClone pushes the clone that reserveClone has found a session for, and makes
// the stack as high as what is on it.
func (g *gen) pushClone(kind int) {
	if g.forks.clone {
		none := g.label("no_clone")
		g.emit(asm.JEq.Imm(rTemp, 0, none))
		g.set(rTemp, 0)
		g.push(kind, none)
		g.set(rTemp, 1)
		g.mark(none)
	}
	g.load(asm.R0, stMore)
	g.load(asm.R1, stJobs)
	g.emit(asm.Add.Reg(asm.R1, asm.R0), asm.Add.Reg(asm.R1, rTemp))
	g.store(stJobs, asm.R1)
}

// findReplicas looks up the list R0: rEntry is its replicas.
func (g *gen) findReplicas(none string) {
	g.emit(asm.StoreMem(rState, int16(g.st.key+4), asm.R0, asm.Word))
	g.storeImm(g.st.key, 32, asm.Word)
	g.lookup(g.objs.groups, rState, g.st.key)
	g.emit(asm.JEq.Imm(asm.R0, 0, none), asm.Mov.Reg(rEntry, asm.R0))
}

// copyReplicas copies the list rEntry to the slot rTemp above the stack's top: a
// packet's copies go to the group as it was, even if it changes meanwhile.
func (g *gen) copyReplicas(none string) {
	g.slot(none)
	g.emit(
		asm.LoadMapPtr(asm.R1, g.objs.lists.FD()),
		asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4),
		asm.Mov.Reg(asm.R3, rEntry), asm.Mov.Imm(asm.R4, 0),
		asm.FnMapUpdateElem.Call())
}

// slot makes a key of the slot rTemp above the stack's top. If there is none, the
// copy is counted as lost.
func (g *gen) slot(none string) {
	free := g.label("slot")
	g.load(asm.R0, stJobs)
	g.emit(asm.Add.Reg(asm.R0, rTemp), asm.StoreMem(asm.R10, -4, asm.R0, asm.Word), asm.JLT.Imm(asm.R0, maxJobs, free))
	g.looped()
	g.jump(none)
	g.mark(free)
}

// looped counts a packet of which the program wants too many copies.
func (g *gen) looped() {
	g.load(asm.R0, stPort)
	g.stat(nLooped, -1)
}

// pushOriginal pushes the packet that ingress or egress has judged.
func (g *gen) pushOriginal(kind int) {
	full := g.label("full")
	g.push(kind, full)
	g.storeImm(stMore, 1, asm.DWord)
	g.mark(full)
}

// push writes the packet to the slot rTemp above the stack's top.
func (g *gen) push(kind int, full string) {
	g.slot(full)
	g.lookup(g.objs.jobs, asm.R10, -4)
	g.emit(asm.JEq.Imm(asm.R0, 0, full), asm.Mov.Imm(asm.R1, int32(kind)), asm.StoreMem(asm.R0, jobKind, asm.R1, asm.DWord))
	g.set(asm.R1, 0)
	g.emit(asm.StoreMem(asm.R0, jobNext, asm.R1, asm.DWord))
	g.save(asm.R0)
}

// save copies the packet's own part of the state to a job.
func (g *gen) save(job asm.Register) {
	for at := stOwn; at < g.st.copied; at += 8 {
		g.load(asm.R1, at)
		g.emit(asm.StoreMem(job, int16(jobState+at-stOwn), asm.R1, asm.DWord))
	}
}

// restore copies it back.
func (g *gen) restore(job asm.Register) {
	for at := stOwn; at < g.st.copied; at += 8 {
		g.emit(asm.LoadMem(asm.R1, job, int16(jobState+at-stOwn), asm.DWord))
		g.store(at, asm.R1)
	}
}

// Multicast groups and clone sessions are lists of replicas in one LPM trie, for
// the reason that tables are (doc.go). A list's layout:
//
//	0 how many replicas there are       u32
//	4 the copies' longest length plus one, or 0   u32
//	8 the replicas: port u16, instance u16
const (
	listCount    = 0
	listLimit    = 4
	listReplicas = 8

	// maxReplicas is how many replicas a group or session has at most: a power
	// of two.
	maxReplicas = 1 << 10
	listSize    = listReplicas + 4*maxReplicas

	// maxLists is how many groups and sessions there may be together.
	maxLists = 1 << 14
	// maxGroup and maxSession are the largest ids, as in bmv2.
	maxGroup   = 1<<16 - 1
	maxSession = 1<<15 - 1
	// sessionKey is added to a session's id to make its key.
	sessionKey = 1 << 16
)

// makeCopyMaps makes the maps of a program that makes copies.
func (x *Executor) makeCopyMaps(g *gen) error {
	o := &x.maps
	var err [4]error
	o.groups, err[0] = newMap(&ebpf.MapSpec{
		Name: "groups", Type: ebpf.LPMTrie, Flags: bpfNoPrealloc, KeySize: 8, ValueSize: listSize, MaxEntries: maxLists,
	})
	perCPU := func(name string, size int) (*ebpf.Map, error) {
		return newMap(&ebpf.MapSpec{Name: name, Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: uint32(size), MaxEntries: maxJobs})
	}
	o.lists, err[1] = perCPU("lists", listSize)
	o.jobs, err[2] = perCPU("jobs", jobState+g.st.copied-stOwn)
	o.outputs, err[3] = newMap(&ebpf.MapSpec{
		Name: "outputs", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(binary.Size(sentCopy{})), MaxEntries: uint32(x.testOutputs),
	})
	return errors.Join(err[:]...)
}

// Multicast implements datapath.Datapath.
func (x *Executor) Multicast(id uint32, replicas []datapath.Replica) error {
	var err error
	switch {
	case id == 0 || id > maxGroup:
		err = datapath.ErrUnsupported
	case !x.prog.Std.MulticastGroup.Valid():
		err = fmt.Errorf("%w: the program has no mcast_grp", datapath.ErrUnsupported)
	default:
		err = x.setReplicas(id, replicas, 0)
	}
	if err != nil {
		return fmt.Errorf("multicast group %d: %w", id, err)
	}
	return nil
}

// Clone implements datapath.Datapath.
func (x *Executor) Clone(id uint32, replicas []datapath.Replica, truncate int) error {
	err := datapath.ErrUnsupported
	if id <= maxSession {
		err = x.setReplicas(id|sessionKey, replicas, truncate)
	}
	if err != nil {
		return fmt.Errorf("clone session %d: %w", id, err)
	}
	return nil
}

// setReplicas writes a list, or removes it if there are no replicas. A program
// that makes no copies has no lists, and nothing to do with them.
func (x *Executor) setReplicas(id uint32, replicas []datapath.Replica, truncate int) error {
	m := x.maps.groups
	if m == nil {
		return nil
	}
	if len(replicas) > maxReplicas {
		return fmt.Errorf("%w: %d replicas; there may be %d", datapath.ErrFull, len(replicas), maxReplicas)
	}
	ne := binary.NativeEndian
	key := ne.AppendUint32(ne.AppendUint32(nil, 32), id)
	if len(replicas) == 0 {
		if err := deleteElement(m, key); !errors.Is(err, unix.ENOENT) {
			return err
		}
		return nil
	}
	list := make([]byte, listSize)
	ne.PutUint32(list[listCount:], uint32(len(replicas)))
	if truncate > 0 {
		ne.PutUint32(list[listLimit:], uint32(min(truncate, maxFrame))+1)
	}
	for i, r := range replicas {
		if r.Port >= numPorts {
			return fmt.Errorf("%w: port %d; there are %d", datapath.ErrUnsupported, r.Port, numPorts)
		}
		at := list[listReplicas+4*i:]
		ne.PutUint16(at, uint16(r.Port))
		ne.PutUint16(at[2:], uint16(r.Instance))
	}
	err := putElement(m, key, list)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("%w: %w", datapath.ErrFull, err)
	}
	return err
}
