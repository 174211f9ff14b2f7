package dsmpacket

import (
	"errors"
	"reflect"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
)

// parseLedger reads what a datagram to or from an address carries.
func parseLedger(t *testing.T, b []byte) (Header, []byte) {
	t.Helper()
	h, data, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return h, data
}

func TestLedgerRequests(t *testing.T) {
	for _, q := range []LedgerRequest{
		{Op: LedgerOpen, Ledger: [16]byte{1}, Run: 3, Incarnation: 2, Birth: 9},
		{Op: LedgerAppend, Ledger: [16]byte{1}, Run: 3, Incarnation: 2, Birth: 9, Keep: 4, Chunk: Chunk{Number: 7, Continues: true, Data: []byte("part")}},
		{Op: LedgerRead, Ledger: [16]byte{1}, Run: 3, Incarnation: 2, Chunk: Chunk{Number: 7}, Size: 5000, More: 15},
		{Op: LedgerCommit, Ledger: [16]byte{1}, Run: 3, Incarnation: 4}, {Op: LedgerRollback, Ledger: [16]byte{1}, Run: 3, Incarnation: 4},
		{Op: LedgerCommit, Ledger: [16]byte{1}, Run: 3, Incarnation: 4, Main: 1 << 40, Checkpoint: 7},
		{Op: LedgerRollback, Ledger: [16]byte{1}, Run: 3, Incarnation: 4, From: 1 << 40},
	} {
		h, data := parseLedger(t, q.Append(nil))
		got, err := ParseLedgerRequest(LedgerAddress(0x10, 1, q.Op), &h, data)
		if err != nil || !reflect.DeepEqual(got, q) {
			t.Errorf("%+v became %+v, %v", q, got, err)
		}
		if _, err := ParseLedgerRequest(LedgerAddress(0x10, 1, q.Op), &h, append(data, 0)); !errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("%s with a byte too many: %v", q.Op, err)
		}
	}
}

func TestLedgerAnswers(t *testing.T) {
	for _, a := range []LedgerAnswer{
		{Op: LedgerOpen, Ledger: [16]byte{1}, Run: 3, Incarnation: 2, Birth: 9, Chunk: Chunk{Number: 4}, Next: 8, Room: 5000, Space: 9000},
		{Op: LedgerAppend, Status: fault.Stale, Run: 4, Sealed: true, Birth: 9, Chunk: Chunk{Number: 7}, Next: 8, Mirror: Mirror{Epoch: 2, Copy: 1, Members: 2}},
		{Op: LedgerRead, Chunk: Chunk{Number: 7, Continues: true, Data: []byte("text")}, Next: 8},
		{Op: LedgerRollback, Ledger: [16]byte{1}, Run: 3, Incarnation: 4, Main: 1 << 40, Checkpoint: 7},
		{Op: LedgerRollback, Ledger: [16]byte{1}, Run: 3, Incarnation: 4, From: 64, More: true, Left: []Left{{1 << 32, 7, 1 << 40, 6}, {0, 1, 1 << 41, 12}}},
	} {
		want := a
		if want.Chunk.Data == nil {
			want.Chunk.Data = []byte{}
		}
		header := a.Header()
		h, data := parseLedger(t, append(header.Append(nil), a.Data()...))
		got, err := ParseLedgerAnswer(LedgerAddress(0x10, 1, a.Op), &h, data)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%+v became %+v, %v", a, got, err)
		}
	}
}

// FuzzLedger: whatever is parsed says the same when it is written again.
func FuzzLedger(f *testing.F) {
	q := LedgerRequest{Op: LedgerAppend, Chunk: Chunk{Number: 1, Data: []byte("x")}}
	f.Add(q.Append(nil), uint8(LedgerAppend))
	a := LedgerAnswer{Chunk: Chunk{Number: 1}}
	header := a.Header()
	f.Add(header.Append(nil), uint8(LedgerRead))
	f.Fuzz(func(t *testing.T, b []byte, op uint8) {
		h, data, err := Parse(b)
		if err != nil {
			return
		}
		at := LedgerAddress(0x10, 1, LedgerOp(op))
		if q, err := ParseLedgerRequest(at, &h, data); err == nil {
			h, data := parseLedger(t, q.Append(nil))
			if again, err := ParseLedgerRequest(at, &h, data); err != nil || !reflect.DeepEqual(again, q) {
				t.Fatalf("%+v became %+v, %v", q, again, err)
			}
		}
		if a, err := ParseLedgerAnswer(at, &h, data); err == nil {
			header := a.Header()
			h, data := parseLedger(t, append(header.Append(nil), a.Data()...))
			if again, err := ParseLedgerAnswer(at, &h, data); err != nil || !reflect.DeepEqual(again, a) {
				t.Fatalf("%+v became %+v, %v", a, again, err)
			}
		}
	})
}
