package transport

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/script"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// TestScripts plays testdata/*.txt: one endpoint, and a script that is the
// network and the servers. Command lines have their output indented below (go
// test -update writes it). Datagrams carry 100 bytes, a window holds three.
//
//	NAME read P N | write P N | free P | alloc P SIZE    start a transfer
//	cancel NAME [CODE]
//	answer #K... [CODE] [applied]    the server answers the K-th datagram sent
//	deny #K...                       the switch turns it around
//	lent #K...                       likewise, as the region is lent now
//	forge #K FIELD                   an answer with one thing wrong
//	after D                          time passes, the timer fires when it is due
//	quiet D                          the same, but what is sent is only counted
//	answer@C #K... …                 copy C of the machine does
//	copies MACHINE EPOCH MEMBERS     what the machine's answers say from now on; at first the
//	                                 client knows that it has one copy
//	barrier NAME P...                close    stats
//
// P is MACHINE:ADDRESS. Time is shown when it has passed.
func TestScripts(t *testing.T) {
	script.RunInline(t, "testdata/*.txt", func() script.Command {
		s := &scripted{names: map[string]*Transfer{}, mirrors: map[uint8]dsmpacket.Mirror{}}
		s.e = New(Config{Incarnation: 7, MaxData: 100, Window: 3 * (100 + overhead)})
		return func(out io.Writer, words []string) error {
			s.out = out
			if err := s.command(words); err != nil {
				return err
			}
			s.flush()
			return nil
		}
	})
}

type scripted struct {
	e     *Endpoint
	now   time.Duration
	sent  []Packet
	names map[string]*Transfer
	quiet bool
	out   io.Writer
	// mirrors is what the machines' answers say of their copies.
	mirrors map[uint8]dsmpacket.Mirror
}

func (s *scripted) printf(format string, args ...any) { fmt.Fprintf(s.out, format+"\n", args...) }

func (s *scripted) command(w []string) error {
	switch w[0] {
	case "cancel":
		code := fault.Canceled
		if len(w) > 2 {
			code = codeNamed(w[2:])
		}
		if t := s.names[w[1]]; s.e.Cancel(s.now, t, code) {
			s.done(t)
		} else {
			s.printf("%s was done", w[1])
		}
	case "copies":
		m, _ := strconv.Atoi(w[1])
		epoch, _ := strconv.Atoi(w[2])
		members, _ := strconv.Atoi(w[3])
		s.mirrors[uint8(m)] = dsmpacket.Mirror{Epoch: uint32(epoch), Members: uint8(members)}
	case "answer", "deny", "lent", "forge", "answer@0", "answer@1":
		return s.receive(w)
	case "after", "quiet":
		d, err := time.ParseDuration(w[1])
		before := len(s.sent)
		s.quiet = w[0] == "quiet"
		s.pass(d)
		if s.quiet {
			s.printf("sent %d datagrams", len(s.sent)-before)
		}
		s.quiet = false
		return err
	case "barrier":
		var ptrs []dsmpacket.Pointer
		for _, p := range w[2:] {
			ptrs = append(ptrs, pointer(p))
		}
		if b := s.e.Barrier(ptrs); b != nil {
			b.Tag = w[1]
		} else {
			s.printf("%s has passed", w[1])
		}
	case "close":
		s.e.Close(fault.Canceled)
	case "stats":
		s.printf("%+v", s.e.Stats)
	default:
		return s.start(w)
	}
	return nil
}

func (s *scripted) start(w []string) error {
	t := &Transfer{Tag: w[0], Pointer: pointer(w[2])}
	if m := t.Pointer.Machine(); s.mirrors[m].Members == 0 {
		s.mirrors[m] = dsmpacket.Mirror{Epoch: 1, Members: 1}
		s.e.meet(s.now, s.e.peer(t.Pointer), s.mirrors[m])
	}
	s.names[w[0]] = t
	n := 0
	if len(w) > 3 {
		n, _ = strconv.Atoi(w[3])
	}
	switch w[1] {
	case "read":
		t.Op, t.Buf = dsmpacket.OpRead, make([]byte, n)
	case "write":
		t.Op, t.Buf = dsmpacket.OpWrite, []byte(strings.Repeat("w", n))
	case "free":
		t.Op = dsmpacket.OpFree
	case "alloc":
		t.Op, t.Size = dsmpacket.OpAlloc, uint64(n)
	default:
		return fmt.Errorf("unknown command")
	}
	s.e.Start(s.now, t)
	return nil
}

// pass lets time pass, as the shell's timer does.
func (s *scripted) pass(d time.Duration) {
	for end := s.now + d; s.now < end; {
		s.now = min(end, max(s.e.Wake(), s.now))
		if s.now == s.e.Wake() {
			s.e.Tick(s.now)
			if n := len(s.e.Ready().Done); n > 0 || !s.quiet && len(s.e.Ready().Send) > 0 {
				s.printf("at %v", s.now)
			}
			s.flush()
		}
	}
}

// receive makes answers to datagrams.
func (s *scripted) receive(w []string) error {
	var code fault.Code
	name, copied, _ := strings.Cut(w[0], "@")
	if rest := w[2:]; len(rest) > 0 && name == "answer" {
		for len(rest) > 0 && rest[0][0] == '#' {
			rest = rest[1:]
		}
		code = codeNamed(rest)
	}
	for _, word := range w[1:] {
		if word[0] != '#' {
			break
		}
		k, err := strconv.Atoi(word[1:])
		if err != nil || k < 1 || k > len(s.sent) {
			return fmt.Errorf("no datagram %s", word)
		}
		p := s.sent[k-1]
		from, h, data := p.To, p.Header, []byte(nil)
		h.Kind, h.Status, h.Mirror = dsmpacket.Reply, code, s.mirrors[p.To.Machine()]
		if copied == "1" {
			h.Mirror.Copy = 1
		}
		switch from.Op() {
		case dsmpacket.OpRead:
			data = []byte(strings.Repeat("r", int(h.Length)))
		case dsmpacket.OpSettle:
			h.Length = 0
			noted := h.Flags & dsmpacket.FlagDiverged << 1
			h.Flags = h.Flags&dsmpacket.FlagFinal | noted // as the server does
			if h.Mirror.Members == 1 {
				h.Flags = dsmpacket.FlagFinal
			}
		}
		if w[len(w)-1] == "applied" {
			h.Flags |= dsmpacket.FlagApplied
		}
		if w[0] == "deny" {
			h, data = p.Header, p.Data
			h.Kind, h.Status = dsmpacket.Nack, fault.PermissionDenied
		}
		if w[0] == "lent" {
			h, data = p.Header, p.Data
			h.Kind, h.Status = dsmpacket.Nack, fault.Overloaded
		}
		if w[0] == "forge" {
			data = spoil(w[2], &from, &h, data)
		}
		s.e.Receive(s.now, from, &h, data)
	}
	return nil
}

// spoil makes one thing of an answer wrong.
func spoil(what string, from *dsmpacket.Pointer, h *dsmpacket.Header, data []byte) []byte {
	switch what {
	case "incarnation":
		h.Incarnation++
	case "id":
		h.Request += 1000
	case "kind":
		h.Kind = dsmpacket.Request
	case "machine":
		from[5]++
	case "prefix":
		from[4]++
	case "address":
		*from = from.Add(1)
	case "operation":
		*from = from.With(dsmpacket.OpSettle)
	case "offset":
		*from = from.Add(64)
	case "length":
		h.Length--
	case "short":
		return data[:len(data)-1]
	}
	return data
}

// flush prints what has become ready.
func (s *scripted) flush() {
	r := s.e.Ready()
	for _, p := range r.Send {
		s.sent = append(s.sent, p)
		if s.quiet {
			continue
		}
		h := p.Header
		line := fmt.Sprintf("#%d %s", len(s.sent), p.To.Op())
		switch p.To.Op() {
		case dsmpacket.OpSettle:
			line += fmt.Sprintf(" of %d", h.Length)
			if h.Flags&dsmpacket.FlagFinal != 0 {
				line += " for good"
			}
			if h.Flags&dsmpacket.FlagDiverged != 0 {
				line += ": the copies disagree"
			}
		case dsmpacket.OpAlloc:
			line += fmt.Sprintf(" of %d bytes at %#x", h.Length, address(p.To))
		case dsmpacket.OpRead, dsmpacket.OpWrite:
			line += fmt.Sprintf(" of %d bytes at %#x", h.Length, address(p.To))
		case dsmpacket.OpFree:
			line += fmt.Sprintf(" %#x", address(p.To))
		}
		s.printf("%s, machine %d: id %d, floor %d", line, p.To.Machine(), h.Request, h.Floor)
	}
	for _, t := range r.Done {
		s.done(t)
	}
	for _, b := range r.Passed {
		s.printf("%s passes", b.Tag)
	}
	s.e.Clear()
}

func (s *scripted) done(t *Transfer) {
	line := fmt.Sprintf("%s: %s", t.Tag, t.Status)
	if t.Buf != nil {
		line += fmt.Sprintf(", %d bytes", t.N)
	}
	if t.Local {
		line += " (local)"
	}
	if t.Lent {
		line += " (lent)"
	}
	if t.Lost {
		line += " (lost)"
	}
	s.printf("%s", line)
}

// pointer reads MACHINE:ADDRESS. There is a region every 4,096 bytes.
func pointer(word string) dsmpacket.Pointer {
	m, a, _ := strings.Cut(word, ":")
	machine, _ := strconv.ParseUint(m, 0, 8)
	addr, _ := strconv.ParseUint(a, 0, 64)
	return dsmpacket.Make(rackaddr.DefaultDSMPrefix, uint8(machine), dsmpacket.IDOf(uint32(addr>>12), 1)).Add(int64(addr & 0xfff))
}

// address is pointer's other way round.
func address(p dsmpacket.Pointer) uint64 { return uint64(p.ID().Slot())<<12 + p.Offset() }

// codeNamed finds a code by its name, whose words may be followed by others.
func codeNamed(words []string) fault.Code {
	text := strings.Join(words, " ")
	for c := fault.OK + 1; c.Known(); c++ {
		if strings.HasPrefix(text, c.String()) {
			return c
		}
	}
	return fault.OK
}
