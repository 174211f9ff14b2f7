package store

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/script"
	"github.com/bifrost-rack/bifrost/internal/share"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// TestScripts plays testdata/*.txt: command lines, with their output indented
// below (go test -update writes it).
//
//	NODE[/INCARNATION] ID[^FLOOR] [eN[.INDEX]] OPERATION     a request, and its answer
//	    alloc SIZE | read P N | write P TEXT | fill P N BYTE | free P | settle ID
//	    eN: on behalf of execution N, as operation INDEX of its trunk
//	NODE[/INCARNATION] commit|rollback RUN...                a node's words about its executions
//	    RUN: eN[/INCARNATION][:MAIN.CHECKPOINT], where the node's incarnation is left out
//	undo LIMIT     undo     executions
//	fence NODE/INCARNATION     reclaim P:CLASS...     regions [FROM [MAX]]
//	used     clean N     records     forget     owner NODE PORT     give NODE TO     refused
//	shares REGIONS       begins with an empty store, which owners share
//
// Nodes are n1, n2, …; P is rK+OFFSET, and rK the K-th region allocated.
func TestScripts(t *testing.T) {
	script.RunInline(t, "testdata/*.txt", func() script.Command {
		s := &scripted{store: newTestStore(1 << 20)}
		return func(out io.Writer, words []string) error {
			s.out = out
			return s.command(words)
		}
	})
}

const testMachine = 2

func newTestStore(capacity int) *Store {
	return New(testConfig(capacity))
}

func testConfig(capacity int) Config {
	return Config{
		Prefix: rackaddr.DefaultDSMPrefix, Machine: testMachine,
		Memory: make([]byte, capacity), Discard: func(b []byte) { clear(b) }, MaxData: 4096,
	}
}

// sharedStore is a store that owners share.
func sharedStore(capacity, regions int) *Store {
	cfg := testConfig(capacity)
	cfg.Owners, cfg.Limits.Regions = true, regions
	return New(cfg)
}

type scripted struct {
	store   *Store
	regions []dsmpacket.Region
	chosen  map[string]dsmpacket.Pointer // by node, incarnation and request
	out     io.Writer
}

// choose returns the region of an allocation: that of the same request, or that of an earlier run of the execution, or a new one.
func (s *scripted) choose(r *Request) dsmpacket.Pointer {
	request := fmt.Sprint(r.Node, r.Header.Incarnation, r.Header.Request)
	p, again := s.chosen[request]
	if !again {
		p = choose(s.store, r.Node)
		if e := s.store.undo.of(r); e != nil && e.allocs[keyOf(r)] != nil {
			p = dsmpacket.Make(rackaddr.DefaultDSMPrefix, testMachine, e.allocs[keyOf(r)].region.id)
		}
		if s.chosen == nil {
			s.chosen = map[string]dsmpacket.Pointer{}
		}
		s.chosen[request] = p
	}
	return p
}

func (s *scripted) printf(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

func (s *scripted) command(w []string) error {
	switch w[0] {
	case "fence":
		var n, inc int
		if _, err := fmt.Sscanf(w[1], "n%d/%d", &n, &inc); err != nil {
			return err
		}
		for _, r := range s.store.Fence(control.Fence{Node: rackaddr.Node(uint64(n)), Incarnation: uint32(inc)}).Regions {
			s.printf("unsettled: %s class %d of %s, execution e%d", r.ID, r.Class, r.Owner, r.Execution[15])
		}
	case "forget":
		s.chosen = nil
		s.store.Forget()
	case "reclaim":
		return s.reclaim(w[1:])
	case "regions":
		var q control.Regions
		if len(w) > 1 {
			q.From = s.pointer(w[1]).ID()
		}
		if len(w) > 2 {
			q.Max, _ = strconv.Atoi(w[2])
		}
		l := s.store.List(q)
		for _, r := range l.Regions {
			s.printf("%s class %d of %s", r.ID, r.Class, r.Owner)
		}
		s.printf("next %s", l.Next)
	case "owner":
		node, incarnation, err := nodeOf(w[1])
		if err != nil {
			return err
		}
		port, err := strconv.ParseUint(w[2], 0, 32)
		s.store.Learn(node, incarnation, share.Owner{Port: uint32(port)})
		return err
	case "shares":
		regions, err := strconv.Atoi(w[1])
		s.store, s.regions, s.chosen = sharedStore(1<<20, regions), nil, nil
		return err
	case "give":
		return s.give(w[1], w[2])
	case "refused":
		var lines []string
		s.store.RefusedUndo(func(o share.Owner, n uint64) { lines = append(lines, fmt.Sprintf("%s undo %d", o, n)) })
		s.store.RefusedRegions(func(o share.Owner, n uint64) { lines = append(lines, fmt.Sprintf("%s regions %d", o, n)) })
		slices.Sort(lines)
		s.printf("%s", strings.Join(lines, "; "))
	case "used":
		s.printf("%d", s.store.Used())
	case "clean":
		n, err := strconv.ParseInt(w[1], 0, 64)
		s.store.Clean(int(n))
		s.printf("dirty %v", s.store.Dirty())
		return err
	case "records":
		s.printf("%d", s.store.clients.records)
	case "undo", "executions":
		return s.undo(w)
	default:
		if w[1] == "commit" || w[1] == "rollback" {
			return s.words(w)
		}
		return s.request(w)
	}
	return nil
}

func (s *scripted) reclaim(words []string) error {
	var body control.Reclaim
	for _, w := range words {
		p, rest, _ := strings.Cut(w, ":")
		c, err := strconv.Atoi(rest)
		if err != nil {
			return err
		}
		body.Regions = append(body.Regions, control.RegionID{ID: s.pointer(p).ID(), Class: uint8(c)})
	}
	for _, r := range s.store.Reclaim(body).Refused {
		s.printf("refused: %s class %d", r.ID, r.Class)
	}
	return nil
}

// words carries out NODE[/INCARNATION] commit|rollback RUN....
func (s *scripted) words(w []string) error {
	node, says, err := nodeOf(w[0])
	if err != nil {
		return err
	}
	for _, word := range w[2:] {
		name, main, _ := strings.Cut(word, ":")
		e, incarnation, named := strings.Cut(name, "/")
		run := control.Run{Execution: executionID(e), Node: node, Incarnation: says}
		if named {
			n, _ := strconv.ParseUint(incarnation, 10, 32)
			run.Incarnation = uint32(n)
		}
		if main != "" {
			if _, err := fmt.Sscanf(main, "%d.%d", &run.Main, &run.Checkpoint); err != nil {
				return err
			}
		}
		obey := s.store.Commit
		if w[1] == "rollback" {
			obey = s.store.Rollback
		}
		if status := obey(run, says); status != fault.OK {
			s.printf("%s: %s", e, status)
		}
	}
	return nil
}

// nodeOf reads NODE[/INCARNATION].
func nodeOf(word string) (node netip.Addr, incarnation uint32, err error) {
	who, inc, _ := strings.Cut(word, "/")
	var n uint64
	if _, err := fmt.Sscanf(who, "n%d", &n); err != nil {
		return node, 0, err
	}
	incarnation = 1
	if inc != "" {
		i, _ := strconv.Atoi(inc)
		incarnation = uint32(i)
	}
	return rackaddr.Node(n), incarnation, nil
}

// executionID reads eN.
func executionID(word string) control.ExecutionID {
	n, _ := strconv.ParseUint(strings.TrimPrefix(word, "e"), 10, 8)
	return control.ExecutionID{15: byte(n)}
}

// undo carries out the commands about the undo.
func (s *scripted) undo(w []string) error {
	switch {
	case w[0] == "executions":
		for _, key := range s.store.undo.inOrder() {
			e := s.store.undo.byRun[key]
			s.printf("e%d by %s in incarnation %d", key.id[15], key.node, e.by.incarnation)
		}
	case len(w) > 1:
		limit, err := strconv.ParseUint(w[1], 0, 64)
		s.store.KeepUndo(limit)
		return err
	default:
		u := s.store.Undo()
		s.printf("%d executions, %d bytes; %d pages, %d commits, %d rollbacks", u.Executions, u.Bytes, u.Pages, u.Commits, u.Rollbacks)
		if u.Refused > 0 {
			s.printf("%d refused", u.Refused)
		}
	}
	return nil
}

// request carries out NODE[/INC] ID[^FLOOR] [eN[.INDEX]] OPERATION.
func (s *scripted) request(w []string) error {
	r := Request{Header: dsmpacket.Header{Kind: dsmpacket.Request, Floor: 1}}
	var err error
	if r.Node, r.Header.Incarnation, err = nodeOf(w[0]); err != nil {
		return err
	}
	id, floor, _ := strings.Cut(w[1], "^")
	r.Header.Request, _ = strconv.ParseUint(id, 0, 64)
	if floor != "" {
		r.Header.Floor, _ = strconv.ParseUint(floor, 0, 64)
	}
	w = w[2:]
	if w[0][0] == 'e' {
		id, index, _ := strings.Cut(w[0], ".")
		n, _ := strconv.ParseUint(index, 10, 32)
		r.Header.Execution, r.Header.Index = executionID(id), uint32(n)
		w = w[1:]
	}
	if err := s.operation(&r, w); err != nil {
		return err
	}
	a, drop := handle(s.store, &r)
	if drop != NotDropped {
		s.printf("dropped: %v", drop)
		return nil
	}
	s.answer(&r, &a)
	if r.AsksOwner {
		s.printf("asks whose it is")
	}
	return nil
}

// give gives all batches of a node to another one.
func (s *scripted) give(from, to string) error {
	old, _, err := nodeOf(from)
	if err != nil {
		return err
	}
	next, _, err := nodeOf(to)
	if err != nil {
		return err
	}
	for number, b := range s.store.batches.of {
		if b.node == old {
			err = errors.Join(err, s.store.Grant(control.Grant{Batches: []control.BatchOf{{Batch: number, Node: next}}}))
		}
	}
	checkCharges(s, s.store)
	return err
}

// Fatalf is for checkCharges.
func (s *scripted) Fatalf(format string, args ...any) { s.printf(format, args...) }

func (s *scripted) operation(r *Request, w []string) error {
	machine := dsmpacket.Make(rackaddr.DefaultDSMPrefix, testMachine, 0)
	var err error
	switch w[0] {
	case "alloc":
		r.To = s.choose(r).With(dsmpacket.OpAlloc)
		r.Header.Length, err = strconv.ParseUint(w[1], 0, 64)
	case "read":
		r.To = s.pointer(w[1]).With(dsmpacket.OpRead)
		r.Header.Length, err = strconv.ParseUint(w[2], 0, 64)
	case "write":
		r.To, r.Data = s.pointer(w[1]).With(dsmpacket.OpWrite), []byte(strings.Join(w[2:], " "))
		r.Header.Length = uint64(len(r.Data))
	case "fill":
		n, _ := strconv.ParseUint(w[2], 0, 64)
		r.To, r.Data, r.Header.Length = s.pointer(w[1]).With(dsmpacket.OpWrite), []byte(strings.Repeat(w[3], int(n))), n
	case "free":
		r.To = s.pointer(w[1]).With(dsmpacket.OpFree)
	case "settle":
		r.To = machine.With(dsmpacket.OpSettle)
		r.Header.Length, err = strconv.ParseUint(w[1], 0, 64)
	default:
		return fmt.Errorf("unknown command")
	}
	return err
}

// answer prints a reply, and names a region that is new.
func (s *scripted) answer(r *Request, a *Answer) {
	text := a.Header.Status.String()
	switch flags := a.Header.Flags; {
	case r.To.Op() == dsmpacket.OpAlloc && flags&dsmpacket.FlagShare != 0:
		text += " for this owner"
	case r.To.Op() == dsmpacket.OpAlloc && flags&dsmpacket.FlagSlot != 0:
		text += " in this slot"
	case flags&dsmpacket.FlagApplied != 0:
		text = "applied: " + text
	}
	if a.Header.Length > 0 {
		text += fmt.Sprintf(", %d bytes", a.Header.Length)
	}
	if n := len(a.Data); n > 0 && n <= 32 {
		text += fmt.Sprintf(", %q", a.Data)
	}
	if r.To.Op() == dsmpacket.OpAlloc && a.Header.Status == 0 {
		reg, err := dsmpacket.RegionOf(a.From, a.Header.Length)
		if err != nil {
			text += ", " + err.Error()
		}
		text += fmt.Sprintf(", r%d = %s", s.name(reg), reg)
	} else if a.From != r.To {
		text += ", from " + a.From.String()
	}
	s.printf("%s", text)
}

func (s *scripted) name(reg dsmpacket.Region) int {
	for i, r := range s.regions {
		if r == reg {
			return i + 1
		}
	}
	s.regions = append(s.regions, reg)
	return len(s.regions)
}

// pointer reads rK, rK+N or SLOT.GENERATION.
func (s *scripted) pointer(word string) dsmpacket.Pointer {
	name, off, _ := strings.Cut(word, "+")
	n, _ := strconv.ParseInt(off, 0, 64)
	if k, err := strconv.Atoi(strings.TrimPrefix(name, "r")); err == nil && name[0] == 'r' && k <= len(s.regions) {
		return s.regions[k-1].Base.Add(n)
	}
	var slot, generation uint32
	_, _ = fmt.Sscanf(name, "%d.%d", &slot, &generation)
	return dsmpacket.Make(rackaddr.DefaultDSMPrefix, testMachine, dsmpacket.IDOf(slot, generation)).Add(n)
}
