// Package trace tells what became of packets: which parser states and tables they met, with keys, entries and actions, what they did to registers,
// and how they ended. Both executors of a switch tell it in the same form, as text and as JSON.
package trace

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

// The kinds of steps, with the fields of Step that they fill.
const (
	Parser      = "parser"       // the parser entered a state. Name.
	ParserError = "parser error" // the parser stopped. Name of the error.
	Pipeline    = "pipeline"     // a pipeline began. Name.
	Condition   = "condition"    // a condition was evaluated. Name (its source), Hit (its value).
	Table       = "table"        // a table was applied. Name, Key, Hit, Match and Priority of the entry that was hit, Action, Params.
	Action      = "action"       // an action was called by the control itself, or by a member of an action profile. Action, and Params of a member.
	Read        = "read"         // a register was read. Name, Index, Value.
	Write       = "write"        // a register was written. Name, Index, Value.
	Copy        = "copy"         // a copy was made. Name says how, Port where it goes.
	Drop        = "drop"         // the packet or a copy was dropped. Name says why.
	Out         = "out"          // a packet left. Port, Bytes.
)

// Step is something that happened to a packet. Numbers of the program are in hexadecimal.
type Step struct {
	Kind     string         `json:"kind"`
	Name     string         `json:"name,omitempty"`
	Key      []Field        `json:"key,omitempty"`
	Hit      *bool          `json:"hit,omitempty"`
	Match    string         `json:"match,omitempty"`
	Priority int32          `json:"priority,omitempty"`
	Action   string         `json:"action,omitempty"`
	Params   []Field        `json:"params,omitempty"`
	Index    *uint64        `json:"index,omitempty"`
	Value    string         `json:"value,omitempty"`
	Port     *datapath.Port `json:"port,omitempty"`
	Bytes    int            `json:"bytes,omitempty"`
}

// Field is a name and a number in hexadecimal.
type Field struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Packet is a packet that came in, and what became of it and of its copies.
type Packet struct {
	// Number counts the packets of a trace.
	Number uint64 `json:"packet"`
	// TimeNs is when it came, in nanoseconds of a clock that begins with the machine or the executor.
	TimeNs uint64        `json:"time_ns"`
	Port   datapath.Port `json:"port"`
	Bytes  int           `json:"bytes"`
	Steps  []Step        `json:"steps"`
	// Cut tells that there were more steps than a trace has room for.
	Cut bool `json:"cut,omitempty"`
}

// String is the packet as lines of text, the last one ended.
func (p *Packet) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "packet %d: port %d, %d bytes\n", p.Number, p.Port, p.Bytes)
	for i := range p.Steps {
		fmt.Fprintf(&b, "  %-12s %s\n", p.Steps[i].Kind, p.Steps[i].Text())
	}
	if p.Cut {
		b.WriteString("  (there was more)\n")
	}
	return b.String()
}

// Text is the step as a line of text, without its kind.
func (s *Step) Text() string {
	var words []string
	add := func(format string, a ...any) { words = append(words, fmt.Sprintf(format, a...)) }
	if s.Name != "" {
		add("%s", s.Name)
	}
	for _, f := range s.Key {
		add("%s=%s", f.Name, f.Value)
	}
	switch {
	case s.Hit == nil:
	case s.Kind == Condition:
		add("is %t", *s.Hit)
	case *s.Hit:
		add("hit %s", s.Match)
		if s.Priority != 0 {
			add("priority %d", s.Priority)
		}
	default:
		add("miss")
	}
	if s.Action != "" {
		add("%s", s.Action)
	}
	for _, f := range s.Params {
		add("%s=%s", f.Name, f.Value)
	}
	if s.Index != nil {
		add("[%d] %s", *s.Index, s.Value)
	}
	if s.Port != nil {
		add("port %d", *s.Port)
	}
	if s.Bytes > 0 {
		add("%d bytes", s.Bytes)
	}
	return strings.Join(words, " ")
}

// Describe writes a match as people do: value, value/prefix length, value&mask, low..high, or * for any.
func Describe(ms []datapath.Match) string {
	var words []string
	for _, m := range ms {
		switch {
		case m.Wildcard:
			words = append(words, "*")
		case m.Mask != nil:
			words = append(words, fmt.Sprintf("%x&%x", m.Value, m.Mask))
		case m.High != nil:
			words = append(words, fmt.Sprintf("%x..%x", m.Value, m.High))
		case m.PrefixLen > 0:
			words = append(words, fmt.Sprintf("%x/%d", m.Value, m.PrefixLen))
		default:
			words = append(words, fmt.Sprintf("%x", m.Value))
		}
	}
	return strings.Join(words, " ")
}

// Spec is which packets are traced.
type Spec struct {
	// Filter is what a packet must be, all of it, as ParseFilter says; empty: any packet.
	Filter []string `json:"filter,omitempty"`
	// Sample traces one of so many packets that the filter lets through; 0 and 1: each.
	Sample uint32 `json:"sample,omitempty"`
	// Rate is how many packets a second are traced at most; 0 is DefaultRate.
	Rate uint32 `json:"rate,omitempty"`
}

// DefaultRate is how many packets a second are traced if nobody says, MaxRate how many may be.
const (
	DefaultRate = 100
	MaxRate     = 1_000_000
)

// Burst is for how long a trace may have saved up packets that it did not trace.
const Burst = 100 * time.Millisecond

// PacketRate is the rate that is meant.
func (s *Spec) PacketRate() uint32 {
	if s.Rate == 0 {
		return DefaultRate
	}
	return min(s.Rate, MaxRate)
}

// Counts are about the packets of a trace.
type Counts struct {
	Matched uint64 `json:"matched"` // the filter let through
	Skipped uint64 `json:"skipped"` // of those were not traced, since there were too many in that second
	Lost    uint64 `json:"lost"`    // were traced, and nobody read it in time
}

// Session is a trace that runs. An executor makes it, and puts packets in; who asked for it takes them out, and stops it.
type Session struct {
	packets chan *Packet
	lost    atomic.Uint64
	counts  func() Counts
	stop    func()
	once    sync.Once
	number  atomic.Uint64
	ended   chan struct{}
}

// backlog is how many packets wait for a reader at most.
const backlog = 256

// NewSession makes a session: counts tells what the executor has counted, and stop, which is called once, ends what the executor does for it.
func NewSession(counts func() Counts, stop func()) *Session {
	return &Session{packets: make(chan *Packet, backlog), counts: counts, stop: stop, ended: make(chan struct{})}
}

// Put gives the reader a packet, and numbers it. If the reader is behind, the packet's trace is lost, and counted.
func (s *Session) Put(p *Packet) {
	p.Number = s.number.Add(1)
	select {
	case s.packets <- p:
	default:
		s.lost.Add(1)
	}
}

// Packets are the packets traced.
func (s *Session) Packets() <-chan *Packet { return s.packets }

// Ended is closed when the session has been stopped, by its reader or since the executor has been closed.
func (s *Session) Ended() <-chan struct{} { return s.ended }

// Counts tells what has been counted.
func (s *Session) Counts() Counts {
	c := s.counts()
	c.Lost += s.lost.Load()
	return c
}

// Stop ends the session. Packets that were put in can still be read.
func (s *Session) Stop() {
	s.once.Do(func() {
		s.stop()
		close(s.ended)
	})
}
