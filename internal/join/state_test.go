package join

import (
	"bytes"
	"context"
	"reflect"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// logSession is a session that has logged these bytes, or fails.
type logSession struct {
	Session
	logged []byte
	next   uint64
	err    error
	spoil  func(*control.StatePart)
}

func (k logSession) StatePart(_ context.Context, s control.State) (control.StatePart, error) {
	p := control.PartOf(k.logged, s.Offset, k.next)
	if k.spoil != nil {
		k.spoil(&p)
	}
	return p, k.err
}

func TestFetchState(t *testing.T) {
	for name, want := range map[string]State{
		"none": {Next: 3}, "empty": {Base: []byte{}}, "large": {Base: bytes.Repeat([]byte("x"), 3*control.StatePartSize), Next: 9},
		"deltas": {Base: []byte("a"), Deltas: [][]byte{[]byte("b"), make([]byte, control.StatePartSize)}, Next: 1},
	} {
		got, err := FetchState(t.Context(), logSession{logged: want.Append(nil), next: want.Next}, "S")
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %d, %d deltas, %d; %v", name, len(got.Base), len(got.Deltas), got.Next, err)
		}
	}
	got, err := FetchState(t.Context(), logSession{err: fault.New(fault.Unsupported, "", "")}, "S")
	if err != nil || got.Base != nil {
		t.Errorf("from a Gatekeeper that does not log: %+v, %v", got, err)
	}
}

func TestFetchMain(t *testing.T) {
	want := Main{State: []byte("s"), Index: 7, Done: true, Journal: trailer.Section{Type: trailer.Time, Index: 8, Data: make([]byte, 8)}.Append(nil)}
	got, err := FetchMain(t.Context(), logSession{logged: want.Append(nil), next: 7, spoil: func(p *control.StatePart) { p.Done = true }}, "m")
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if _, err := FetchMain(t.Context(), logSession{err: fault.New(fault.Unsupported, "", "")}, "m"); fault.CodeOf(err) != fault.Unsupported {
		t.Errorf("a main that nobody logs: %v", err)
	}
}

func TestFetchJournal(t *testing.T) {
	var want []byte
	for i := range uint32(500) {
		want = trailer.Section{Type: trailer.Effect, Index: i, Data: make([]byte, 100)}.Append(want)
	}
	got, err := FetchJournal(t.Context(), logSession{logged: want}, [16]byte{1})
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d, %v", len(got), len(want), err)
	}
	if _, err := FetchJournal(t.Context(), logSession{logged: State{Base: []byte("s")}.Append(nil)}, [16]byte{1}); fault.CodeOf(err) != fault.Internal {
		t.Errorf("a state for a journal: %v", err)
	}
}

func TestFetchRefuses(t *testing.T) {
	logged := State{Base: make([]byte, 2*control.StatePartSize)}.Append(nil)
	for name, spoil := range map[string]func(*control.StatePart){
		"shrinks": func(p *control.StatePart) { p.Total = 1 },
		"huge":    func(p *control.StatePart) { p.Total = MaxState + 1 },
		"stops":   func(p *control.StatePart) { p.Data = nil },
		"spoilt":  func(p *control.StatePart) { p.Data = bytes.Repeat([]byte{99}, len(p.Data)) },
	} {
		if _, err := FetchState(t.Context(), logSession{logged: logged, spoil: spoil}, "S"); fault.CodeOf(err) != fault.Internal {
			t.Errorf("%s: %v", name, err)
		}
	}
	wrong := Main{State: []byte("s")}.Append(nil)
	if _, err := FetchState(t.Context(), logSession{logged: wrong}, "S"); fault.CodeOf(err) != fault.Internal {
		t.Errorf("a main's state for a service: %v", err)
	}
	if _, err := FetchMain(t.Context(), logSession{logged: logged}, "m"); fault.CodeOf(err) != fault.Internal {
		t.Errorf("a service's state for a main: %v", err)
	}
}

func TestFetchPayload(t *testing.T) {
	want := bytes.Repeat([]byte("x"), control.StatePartSize+7)
	got, err := FetchPayload(t.Context(), logSession{logged: want}, [16]byte{1}, true, uint64(len(want)))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes of %d: %v", len(got), len(want), err)
	}
	if _, err := FetchPayload(t.Context(), logSession{logged: want}, [16]byte{1}, true, 7); fault.CodeOf(err) != fault.Internal {
		t.Errorf("another length than the first packet's: %v", err)
	}
	stale := fault.New(fault.Stale, "", "")
	if _, err := FetchPayload(t.Context(), logSession{err: stale}, [16]byte{1}, false, 7); fault.CodeOf(err) != fault.Stale {
		t.Errorf("another's call: %v", err)
	}
}
