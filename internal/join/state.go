package join

import (
	"context"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// MaxState bounds what FetchState and FetchMain take in, in bytes.
const MaxState = 1 << 30

// State is what is logged of a service's state.
type State struct {
	// Base is the last snapshot; nil if there is none. Deltas are the changes
	// since, the oldest first.
	Base   []byte
	Deltas [][]byte
	// Next is the order number of the next call to run; 0 stands for 1.
	Next uint64
	// First and Unsettled are control.StatePart's.
	First     [16]byte
	Unsettled bool
}

// Main is what is logged of a durable main.
type Main struct {
	// State is its last checkpoint; nil if there is none. Index is the place of
	// that among its operations, 0 if there is none.
	State []byte
	Index uint32
	// Journal is what it has journalled since, as a trailer (rpc/trailer).
	Journal []byte
	// Done: it has come to its end, and must not run again.
	Done bool
	// Key is what its calls are named with (rpc/endpoint.Key).
	Key []byte
	// Memory is what memory blades know the main as.
	Memory [16]byte
	// Ledger, Handed and Run are control.StatePart's.
	Ledger, Handed bool
	Run            uint64
}

// Append appends the state's form on the wire, the sections of a trailer.
func (s State) Append(b []byte) []byte {
	if s.Base != nil {
		b = trailer.Section{Type: trailer.Snapshot, Data: s.Base}.Append(b)
	}
	for _, d := range s.Deltas {
		b = trailer.Section{Type: trailer.Delta, Data: d}.Append(b)
	}
	return b
}

// Append appends the main's form on the wire.
func (m Main) Append(b []byte) []byte {
	if m.State != nil {
		b = trailer.Section{Type: trailer.State, Data: m.State}.Append(b)
	}
	return append(b, m.Journal...)
}

// FetchState fetches a service's state; the zero State is that of a service
// without a past, and of a Gatekeeper that does not log.
func FetchState(ctx context.Context, s Session, service string) (State, error) {
	const op = "fetch state"
	sections, last, err := fetch(ctx, op, s, control.State{Name: service})
	if fault.CodeOf(err) == fault.Unsupported {
		return State{}, nil // what cannot tell a state has not logged one
	}
	state := State{Next: last.Next, First: last.First, Unsettled: last.Unsettled}
	for _, section := range sections {
		switch section.Type {
		case trailer.Snapshot:
			state.Base, state.Deltas = section.Data, nil
		case trailer.Delta:
			state.Deltas = append(state.Deltas, section.Data)
		default:
			return State{}, fault.New(fault.Internal, op, "service %s: a section %s", service, section.Type)
		}
	}
	return state, err
}

// FetchMain registers the session's node as the one that runs a durable main, and
// fetches what is logged of that.
func FetchMain(ctx context.Context, s Session, name string) (Main, error) {
	const op = "fetch main"
	sections, last, err := fetch(ctx, op, s, control.State{Name: name, Main: true})
	m := Main{Index: uint32(last.Next), Done: last.Done, Key: last.Key, Memory: last.Memory, Ledger: last.Ledger, Handed: last.Handed, Run: last.Run}
	for _, section := range sections {
		switch {
		case section.Type == trailer.State:
			m.State = section.Data
		case section.Type.Journal():
			m.Journal = section.Append(m.Journal)
		default:
			return Main{}, fault.New(fault.Internal, op, "main %s: a section %s", name, section.Type)
		}
	}
	return m, err
}

// FetchJournal fetches the journal of an execution that was delivered again with
// more than its packet has room for (rpc/trailer.Spill).
func FetchJournal(ctx context.Context, s Session, execution [16]byte) ([]byte, error) {
	const op = "fetch journal"
	ask := control.State{Execution: execution}
	sections, _, err := fetch(ctx, op, s, ask)
	var journal []byte
	for _, section := range sections {
		if !section.Type.Journal() {
			return nil, fault.New(fault.Internal, op, "execution %s: a section %s", ask.Execution, section.Type)
		}
		journal = section.Append(journal)
	}
	return journal, err
}

// FetchPayload fetches the Thrift message of a logged call, or of the answer to one,
// that exceeds a packet (rpc/rpcpacket.FlagMore). It has length bytes.
func FetchPayload(ctx context.Context, s Session, call [16]byte, answer bool, length uint64) ([]byte, error) {
	const op = "fetch message"
	ask := control.State{Message: call, Answer: answer}
	b, _, err := fetchBytes(ctx, op, s, ask)
	if err == nil && uint64(len(b)) != length {
		return nil, fault.New(fault.Internal, op, "%s has %d bytes, its first packet says %d", ask.Of(), len(b), length)
	}
	return b, err
}

// fetch asks for all parts, which are sections; it returns the last part as well.
func fetch(ctx context.Context, op string, s Session, ask control.State) (sections []trailer.Section, part control.StatePart, err error) {
	b, part, err := fetchBytes(ctx, op, s, ask)
	if err != nil {
		return nil, part, err
	}
	if sections, err = trailer.Parse(b); err != nil {
		return nil, part, &fault.Error{Code: fault.Internal, Op: op, Msg: ask.Of(), Err: err}
	}
	return sections, part, nil
}

// fetchBytes asks for all parts; it returns the last as well.
func fetchBytes(ctx context.Context, op string, s Session, ask control.State) (b []byte, part control.StatePart, err error) {
	for {
		ask.Offset = uint64(len(b))
		part, err = s.StatePart(ctx, ask)
		if err != nil {
			return nil, part, err
		}
		b = append(b, part.Data...)
		switch n := uint64(len(b)); {
		case part.Total > MaxState || n > part.Total:
			return nil, part, fault.New(fault.Internal, op, "%s: %d bytes of %d", ask.Of(), n, part.Total)
		case n == part.Total:
			return b, part, nil
		case len(part.Data) == 0:
			return nil, part, fault.New(fault.Internal, op, "%s: nothing at byte %d of %d", ask.Of(), n, part.Total)
		}
	}
}
