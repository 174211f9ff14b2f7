package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/rpc"
)

// TestState: a snapshot with the deltas since is the state, and what cannot be read changes nothing.
func TestState(t *testing.T) {
	s := newState()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(s.set("b", []byte("2")))
	check(s.set("", nil))
	snapshot, err := s.Snapshot()
	check(err)
	var deltas [][]byte
	for i := range 3 {
		check(s.set(fmt.Sprint("n", i), []byte{byte(i)}))
		s.remove("b")
		s.remove("never there")
		d, err := s.Delta()
		check(err)
		deltas = append(deltas, d)
	}
	if d, err := s.Delta(); err != nil || d != nil {
		t.Errorf("nothing has changed: %x, %v", d, err)
	}
	again := newState()
	check(again.Restore(snapshot))
	for _, d := range deltas {
		check(again.Apply(d))
	}
	if !maps.EqualFunc(s.entries, again.entries, bytes.Equal) || again.size != s.size {
		t.Errorf("%v, want %v", again.entries, s.entries)
	}
	if got := again.keys("n"); fmt.Sprint(got) != "[n0 n1 n2]" {
		t.Error(got)
	}
	if d, _ := again.Delta(); d != nil {
		t.Errorf("what was applied has changed: %x", d)
	}
	for _, bad := range [][]byte{nil, {2}, []byte("{}"), {stateForm, 5, 'a'}, {stateForm, 1, 'a', 9, 'b'}, {stateForm, 1, 'b', 1, 1, 'a', 1}, {stateForm, 1, 'a', 0}, {stateForm, 0xff}} {
		if err := again.Restore(bad); !errors.Is(err, errState) {
			t.Errorf("%x: %v", bad, err)
		}
	}
	if !maps.EqualFunc(s.entries, again.entries, bytes.Equal) {
		t.Error("what is no state has changed the state")
	}
	again.size = maxState
	if err := again.set("x", nil); rpc.CodeOf(err) != rpc.NoSpace {
		t.Error(err)
	}
}

// FuzzState: nothing that a ledger may have makes the state panic, and what is read is what is kept again.
func FuzzState(f *testing.F) {
	f.Add([]byte{stateForm, 1, 'a', 2, 'b', 1, 'b', 1}, []byte{stateForm, 1, 'a', 0})
	f.Add([]byte{stateForm, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, []byte{})
	f.Fuzz(func(t *testing.T, snapshot, delta []byte) {
		s := newState()
		if s.Restore(snapshot) != nil || s.Apply(delta) != nil {
			return
		}
		b, err := s.Snapshot()
		again := newState()
		if err != nil || again.Restore(b) != nil || !maps.EqualFunc(s.entries, again.entries, bytes.Equal) || s.size != again.size {
			t.Errorf("%v has become %v, %v", s.entries, again.entries, err)
		}
	})
}

// nested is a message with lists within each other.
func nested(depth int) []byte {
	b := thrift.NewTMemoryBuffer()
	p := binaryOver(b)
	ctx := context.Background()
	_ = p.WriteMessageBegin(ctx, "deep", thrift.CALL, 0)
	_ = p.WriteFieldBegin(ctx, "", thrift.LIST, 1)
	for range depth {
		_ = p.WriteListBegin(ctx, thrift.LIST, 1)
	}
	_ = p.WriteListBegin(ctx, thrift.I32, 0)
	_ = p.WriteFieldStop(ctx)
	return b.Bytes()
}

func copied(b []byte, limit int) ([]byte, error) {
	ctx := context.Background()
	m, err := openMessage(ctx, b)
	if err != nil {
		return nil, err
	}
	out := newMemory(limit)
	p := binaryOver(out)
	if err := p.WriteMessageBegin(ctx, m.name, m.kind, 0); err != nil {
		return nil, err
	}
	err = m.copyTo(ctx, p, nil)
	return out.Bytes(), err
}

func TestCopy_Refuses(t *testing.T) {
	if _, err := copied(nested(30), 1000); err != nil {
		t.Error(err)
	}
	for want, err := range map[string]error{
		"deep within":             second(copied(nested(100), 10_000)),
		"more than 100 bytes":     second(copied(nested(30), 100)),
		"Thrift type 1":           second(copied(append(nested(0)[:16], byte(thrift.VOID), 0, 1, 0), 1000)),
		"bytes follow the messag": second(copied(append(nested(0), 0), 1000)),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// FuzzCopy: no message makes the copier panic, and the copy of a copy is the same.
func FuzzCopy(f *testing.F) {
	f.Add(nested(3))
	b := thrift.NewTMemoryBuffer()
	p := binaryOver(b)
	ctx := context.Background()
	_ = p.WriteMessageBegin(ctx, "all", thrift.REPLY, 7)
	for i, write := range []func() error{
		func() error { return p.WriteBool(ctx, true) }, func() error { return p.WriteDouble(ctx, 1.5) }, func() error { return p.WriteString(ctx, "text") },
		func() error {
			return errors.Join(p.WriteMapBegin(ctx, thrift.I16, thrift.BYTE, 1), p.WriteI16(ctx, 2), p.WriteByte(ctx, 3))
		},
		func() error { return errors.Join(p.WriteSetBegin(ctx, thrift.I64, 1), p.WriteI64(ctx, 4)) },
	} {
		_ = p.WriteFieldBegin(ctx, "", []thrift.TType{thrift.BOOL, thrift.DOUBLE, thrift.STRING, thrift.MAP, thrift.SET}[i], int16(i)) //nolint:gosec // small
		_ = write()
	}
	_ = p.WriteFieldStop(ctx)
	if _, err := copied(b.Bytes(), 1000); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		once, err := copied(b, 1<<20)
		if err != nil {
			return
		}
		twice, err := copied(once, 1<<20)
		if err != nil || !bytes.Equal(once, twice) {
			t.Errorf("%x has become %x, then %x, %v", b, once, twice, err)
		}
	})
}
