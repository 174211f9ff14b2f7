package rpcpacket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/wirefmt"
)

var sender = netip.MustParseAddr("fdb1::7")

// large is a message whose datagram has so many bytes.
func large(t *testing.T, size int) (Message, []byte) {
	t.Helper()
	m := sample()
	m.Trailer = make([]byte, size-m.Size()+len(m.Trailer))
	r := rand.New(rand.NewPCG(uint64(size), 1))
	for i := range m.Trailer {
		m.Trailer[i] = byte(r.Uint32())
	}
	return m, m.Append(nil)
}

func (a *Assembler) mustAdd(t *testing.T, b []byte) []byte {
	t.Helper()
	m, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if m.Flags&FlagPart == 0 || len(m.Pointers) > 0 {
		t.Fatalf("no part: flags %#x, %d pointers", m.Flags, len(m.Pointers))
	}
	whole, err := a.Add(sender, &m, b)
	if err != nil {
		t.Fatal(err)
	}
	return whole
}

// Parts come in any order, several times, and sent again with another timeout.
func TestSplitAndAssemble(t *testing.T) {
	const budget = 1232
	for _, size := range []int{budget + 1, budget + partPreface, 2*budget - HeaderSize, 9000, 65527, MaxWhole} {
		_, b := large(t, size)
		parts := Split(b, budget)
		for i, p := range parts {
			if len(p) > budget {
				t.Fatalf("%d bytes: part %d has %d", size, i, len(p))
			}
		}
		a := NewAssembler(MaxWhole)
		r := rand.New(rand.NewPCG(uint64(size), 2))
		order := append(r.Perm(len(parts)), r.Perm(len(parts))...)
		done := 0
		for i, k := range order[:len(parts)+1] {
			p := bytes.Clone(parts[k])
			SetTimeout(p, uint32(1000-i))
			whole := a.mustAdd(t, p)
			if whole == nil {
				continue
			}
			done++
			want := bytes.Clone(b)
			SetTimeout(want, uint32(1000-i))
			if !bytes.Equal(whole, want) {
				t.Fatalf("%d bytes in %d parts: the whole is another", size, len(parts))
			}
		}
		if done != 1 {
			t.Fatalf("%d bytes in %d parts: whole %d times", size, len(parts), done)
		}
	}
}

func TestSplitLeavesWhatFits(t *testing.T) {
	_, b := large(t, 9000)
	if parts := Split(b, 9000); len(parts) != 1 || !bytes.Equal(parts[0], b) {
		t.Fatalf("%d parts", len(parts))
	}
}

// What a part's header says is what the switch has judged: the whole gets its
// flags from there, never from inside.
func TestAssembledFlags(t *testing.T) {
	_, b := large(t, 3000)
	a := NewAssembler(MaxWhole)
	var whole []byte
	for _, p := range Split(b, 1232) {
		whole = a.mustAdd(t, p)
	}
	m, err := Parse(whole)
	if err != nil || m.Flags != sample().Flags {
		t.Fatalf("flags %#x, %v", m.Flags, err)
	}
}

// Messages that are never completed make room for others.
func TestAssemblerIsBounded(t *testing.T) {
	a := NewAssembler(10_000)
	var first []byte
	for i := range uint32(100) {
		_, b := large(t, 3000)
		binary.BigEndian.PutUint32(b[64:], i) // another incarnation
		first = Split(b, 1232)[0]
		a.mustAdd(t, first)
		if a.bytes > 10_000 || len(a.open) != len(a.senders[sender].order) || len(a.open) > 3 {
			t.Fatalf("%d bytes of %d messages are kept", a.bytes, len(a.open))
		}
	}
	_, b := large(t, 50_000) // larger than all that may be kept
	var whole []byte
	for _, p := range Split(b, 1232) {
		whole = a.mustAdd(t, p)
	}
	if whole == nil || a.bytes != 0 || len(a.senders) != 0 {
		t.Fatalf("a large message: %d bytes, %d are kept", len(whole), a.bytes)
	}
}

// TestAssemblerIsFair: a sender that begins many messages and ends none makes its own give
// way, and not that of another, however few of that one's parts have come.
func TestAssemblerIsFair(t *testing.T) {
	a := NewAssembler(1 << 20)
	flood, victim := netip.MustParseAddr("fd00:b1f0:0:2::1"), netip.MustParseAddr("fd00:b1f0:0:2::2")
	_, b := large(t, 100_000)
	parts := Split(b, 1232)
	var whole []byte
	for i, p := range parts {
		m, err := Parse(p)
		if err != nil {
			t.Fatal(err)
		}
		if whole, err = a.Add(victim, &m, p); err != nil {
			t.Fatal(err)
		}
		for j := range uint32(20) {
			_, b := large(t, 70_000)
			binary.BigEndian.PutUint32(b[64:], uint32(i)<<8|j) // another incarnation
			p := Split(b, 1232)[0]
			if m, err = Parse(p); err != nil {
				t.Fatal(err)
			}
			if _, err := a.Add(flood, &m, p); err != nil {
				t.Fatal(err)
			}
		}
	}
	if whole == nil {
		t.Error("the victim's message is not whole")
	}
	if a.bytes > 1<<20 {
		t.Errorf("%d bytes are kept", a.bytes)
	}
}

func TestAssemblerRefuses(t *testing.T) {
	_, b := large(t, 3000)
	whole := Split(b, 1232)
	for name, spoil := range map[string]func(b []byte){
		"too large":        func(b []byte) { binary.BigEndian.PutUint32(b[HeaderSize:], MaxWhole) },
		"too small":        func(b []byte) { binary.BigEndian.PutUint32(b[HeaderSize:], 3) },
		"beyond the end":   func(b []byte) { binary.BigEndian.PutUint32(b[HeaderSize+4:], 1<<31) },
		"offset overflows": func(b []byte) { binary.BigEndian.PutUint32(b[HeaderSize+4:], 1<<32-1) },
	} {
		p := bytes.Clone(whole[0])
		spoil(p)
		m, err := Parse(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := NewAssembler(MaxWhole).Add(sender, &m, p); !errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("%s: %v", name, err)
		}
	}
	a := NewAssembler(MaxWhole)
	last := len(whole) - 1
	for i, p := range whole {
		p = bytes.Clone(p)
		p[HeaderSize+partPreface+20]++
		m, _ := Parse(p)
		if _, err := a.Add(sender, &m, p); (i == last) != errors.Is(err, wirefmt.ErrFormat) {
			t.Errorf("a spoilt part: %v", err)
		}
	}
}

// FuzzAssembler: whatever comes, what is kept is bounded, and what is whole has the
// size that its parts have told.
func FuzzAssembler(f *testing.F) {
	for _, size := range []int{1300, 3000} {
		m := sample()
		m.Trailer = make([]byte, size)
		for _, p := range Split(m.Append(nil), 1232) {
			f.Add(p, uint32(0), uint32(600))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, at, length uint32) {
		m, err := Parse(b)
		if err != nil {
			return
		}
		a := NewAssembler(1 << 16)
		for range 3 {
			whole, err := a.Add(sender, &m, b)
			if err != nil && !errors.Is(err, wirefmt.ErrFormat) {
				t.Fatal(err)
			}
			if whole != nil && len(whole) < HeaderSize {
				t.Fatalf("a whole of %d bytes", len(whole))
			}
			begun := 0
			if s := a.senders[sender]; s != nil {
				begun = len(s.order)
			}
			if len(a.open) != begun || len(a.open) > 1 && a.bytes > 1<<16 {
				t.Fatalf("%d bytes are kept", a.bytes)
			}
			if len(m.Payload) > partPreface {
				binary.BigEndian.PutUint32(m.Payload[4:], at)
				m.Payload = m.Payload[:min(len(m.Payload), partPreface+int(length%2048))]
			}
		}
	})
}
