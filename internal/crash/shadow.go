package crash

import (
	"bytes"
	"fmt"
	"slices"
	"sync"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// shadow compares, whenever a node has been fenced, what its ledger adds up to with what
// the Gatekeeper has logged (design section 6, "Ledgers in shadow first"):
//
//   - A logged answer has its done, with the same outcome.
//   - A done without a logged answer belongs to a call that the log has as delivered, or as
//     taken back. It does not count, and the call is run again.
//   - The states of services are equal.
//   - What the log has journalled of an execution, the ledger has, too.
//   - The copies of a ledger are equal.
type shadow struct {
	run *Run

	mu      sync.Mutex
	places  map[control.LedgerName]control.LedgerPlace
	ignored map[recordAt]bool // dones that do not count
	did     map[string]int
}

// recordAt is where a record is: the index-th that ends in a chunk.
type recordAt struct {
	ledger control.LedgerName
	chunk  uint64
	index  int
}

func newShadow(r *Run) *shadow {
	return &shadow{run: r, places: map[control.LedgerName]control.LedgerPlace{}, ignored: map[recordAt]bool{}, did: map[string]int{}}
}

// fenced compares the ledger of a node that can write nothing any more.
func (s *shadow) fenced(f gatekeeper.FencedNode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	complain := func(format string, args ...any) {
		s.run.ledger.complain("the ledger of node %s, incarnation %d: %s", f.Node.Address, f.Node.Incarnation, fmt.Sprintf(format, args...))
	}
	chunks, why := s.find(f, complain)
	if why != "" {
		s.did["ledgers not compared: "+why]++
		return
	}
	s.did["ledgers compared"]++
	state, err := s.fold(f, chunks)
	if err != nil {
		complain("%v", err)
		return
	}
	for i := range f.Calls {
		s.compareCall(state, &f.Calls[i], complain)
	}
	for hash, want := range f.States {
		s.did["states compared"]++
		if got := stateOf(state, hash); !bytes.Equal(got, want) {
			complain("the state of service %016x is %x, the log has %x", hash, got, want)
		}
	}
}

// find returns the sealed ledger of a node, or why there is none that could be compared.
func (s *shadow) find(f gatekeeper.FencedNode, complain func(string, ...any)) (chunks []dsmpacket.Chunk, why string) {
	if f.Ledger == nil {
		return nil, "none granted"
	}
	name := control.LedgerOf(f.Node.Address)
	if was, known := s.places[name]; known && was != *f.Ledger {
		return nil, "a former one is lost"
	}
	s.places[name] = *f.Ledger
	why = "lost with its memory blade"
	found, in, first := false, uint32(0), control.Ledger{}
	for _, blade := range memoryBlades {
		server := s.run.rack.MemoryServer(blade)
		if server == nil || server.Birth() != f.Ledger.Birth {
			continue
		}
		_, epoch := server.Diverged()
		copied, state, ok := server.ReadLedger(name)
		switch {
		case found && epoch == in && ok && state.Sealed && state.Run == first.Run:
			s.did["copies compared"]++
			if state != first {
				complain("its copies are %+v and %+v", first, state)
			}
		case found:
		case !ok:
			why = "not there"
		case !state.Sealed:
			why = "not sealed: its memory blade is not in service"
		case state.Run > f.Node.Incarnation:
			why = "a later incarnation has it"
		default:
			found, in, first, chunks, why = true, epoch, state, copied, ""
		}
	}
	return chunks, why
}

// fold adds up a ledger, without the dones that do not count.
func (s *shadow) fold(f gatekeeper.FencedNode, chunks []dsmpacket.Chunk) (*record.State, error) {
	open := map[rpcpacket.ID]bool{}
	for _, k := range f.Calls {
		open[k.ID] = !k.Over || k.Aborted
	}
	var reader dsmpacket.Records
	var failed error
	state := new(record.State)
	for _, c := range chunks {
		at := recordAt{ledger: control.LedgerOf(f.Node.Address), chunk: c.Number}
		err := reader.Chunk(c, func(b []byte) {
			r, err := record.Parse(b)
			s.did["ledger records read"]++
			if d, ok := r.(*record.Done); ok && !s.ignored[at] && open[d.Execution] {
				s.did["dones without a logged answer"]++
				s.ignored[at] = true
			}
			if err == nil && !s.ignored[at] {
				err = state.Apply(r)
			}
			if err != nil && failed == nil {
				failed = fmt.Errorf("chunk %d, record %d: %w", at.chunk, at.index, err)
			}
			at.index++
		})
		if err != nil {
			return nil, err
		}
	}
	return state, failed
}

// compareCall compares what is known of one call.
func (s *shadow) compareCall(state *record.State, k *gatekeeper.LoggedCall, complain func(string, ...any)) {
	e := state.Execution(k.ID)
	switch {
	case k.Answer != nil && !k.Aborted:
		s.did["answers compared"]++
		if e == nil || e.Done == nil {
			complain("call %s has a logged answer and no done", k.ID)
			return
		}
		got, err := rpcpacket.Parse(e.Done.Answer)
		if want := k.Answer; err != nil || got.Type != want.Type || got.Code != want.Code || !slices.Equal(got.Pointers, want.Pointers) || !bytes.Equal(got.Payload, want.Payload) {
			complain("call %s has come to %v %v %x, the log has %v %v %x", k.ID, got.Type, got.Code, got.Payload, want.Type, want.Code, want.Payload)
		}
	case !k.Over && len(k.Journal) > 0:
		s.did["journals compared"]++
		var has []byte
		if e != nil {
			has = e.Journal
		}
		if missing := missingFrom(has, k.Journal); missing != "" {
			complain("call %s: %s", k.ID, missing)
		}
	}
}

// missingFrom tells which entry of a journal another one does not have, "" if none.
func missingFrom(has, wanted []byte) string {
	there, err := trailer.Parse(has)
	if err != nil {
		return err.Error()
	}
	entries, err := trailer.Parse(wanted)
	if err != nil {
		return err.Error()
	}
	for _, w := range entries {
		same := func(o trailer.Section) bool {
			return o.Type == w.Type && o.Branch == w.Branch && o.Index == w.Index && bytes.Equal(o.Data, w.Data)
		}
		if !slices.ContainsFunc(there, same) {
			return fmt.Sprintf("its journal lacks the %s of branch %d, operation %d", w.Type, w.Branch, w.Index)
		}
	}
	return ""
}

// stateOf is a service's state as the log has it: sections of a trailer.
func stateOf(state *record.State, hash uint64) (sections []byte) {
	v, _ := state.Service(hash)
	if v.HasSnapshot {
		sections = trailer.Section{Type: trailer.Snapshot, Data: v.Snapshot}.Append(nil)
	}
	for _, d := range v.Deltas {
		sections = trailer.Section{Type: trailer.Delta, Data: d}.Append(sections)
	}
	return sections
}

// figures are what was compared, and what was not and why.
func (s *shadow) figures(into map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for what, n := range s.did {
		into[what] += n
	}
}
