package trace

import (
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Node is one incarnation of a node.
type Node struct {
	Address     netip.Addr
	Incarnation uint32
}

// Kind says what has happened to a call.
type Kind uint8

// The kinds, in the order in which a call goes through them that nothing happens to.
const (
	Sent      Kind = iota // a1: its caller has sent it
	Delivered             // b1: its callee has it
	Replied               // b2: its callee has finished it
	Answered              // a2: its caller has the answer
	Replayed              // run again
	Recalled              // its answer was asked for again, and is the same
)

var kinds = [...]string{
	"sent", "delivered", "replied", "answered", "replayed", "recalled",
}

// String returns the kind's name.
func (k Kind) String() string {
	if int(k) < len(kinds) {
		return kinds[k]
	}
	return "unknown"
}

// ParseKind returns the kind of a name.
func ParseKind(name string) (k Kind, ok bool) {
	i := slices.Index(kinds[:], name)
	return Kind(max(i, 0)), i >= 0 //nolint:gosec // there are few
}

// Step is something that has happened to a call.
type Step struct {
	Time    time.Time
	Kind    Kind
	Node    Node   // where: the callee, or who gets the answer; zero if that does not matter
	Attempt uint16 // how often its execution was begun before
	Blade   string // on which blade the node was then; "" if it was on none
	Why     string // of Replayed: how its former execution came to its end; "" if that is not known
}

// Event is a step, with what is known of the call.
type Event struct {
	Call rpcpacket.ID
	Step
	Code fault.Code // of an exception
	// About is set with Sent.
	About
	// Details are set with Sent and Replied: all that is known by then.
	Details Details
}

// Details is what people may want to know of a call besides, within its bounds.
type Details = control.CallDetails

// About is what does not change about a call.
type About struct {
	// Parent is the execution that made it; zero for a plain client.
	Parent          rpcpacket.ID
	Caller, Callee  Node
	Service, Method string
	Policy          rpcpacket.Policy
	Oneway          bool
}

// MaxSteps bounds the steps of a call that are kept: of one that fails again and
// again the first ones, and the last.
const MaxSteps = 24

// Call is one call as far as it got.
type Call struct {
	ID rpcpacket.ID
	About
	// A1, B1, B2 and A2 are when it was first sent, received, finished and answered;
	// zero for what has not happened, or is not known.
	A1, B1, B2, A2 time.Time
	// Attempts is how often its execution was begun after the first time.
	Attempts int
	// Code is that of the exception that it ended with.
	Code    fault.Code
	Details Details
	// Over: nothing will happen to it any more but that it is asked for again.
	Over  bool
	Steps []Step
	// Skipped is how many steps there were besides.
	Skipped int
	// Sequence orders calls by when they became known.
	Sequence uint64
}

// Failed reports whether something went wrong: it ended with an
// exception that its IDL does not declare, or had to be run again.
func (c *Call) Failed() bool { return c.Code.Failure() || c.Attempts > 0 }

// note adds a step.
func (c *Call) note(e *Event) {
	s := e.Step
	if s.Kind == Answered && !c.A2.IsZero() {
		s.Kind = Recalled
	}
	again := func(o Step) bool { return o.Kind == s.Kind && o.Attempt == s.Attempt && o.Node == s.Node }
	if (s.Kind == Delivered || s.Kind == Replayed) && slices.ContainsFunc(c.Steps, again) {
		return // its callee has told so when it was under way
	}
	first := func(at *time.Time) {
		if at.IsZero() {
			*at = s.Time
		}
	}
	switch s.Kind {
	case Delivered:
		first(&c.B1)
	case Replied:
		first(&c.B2)
		c.Over, c.Details = c.Oneway, e.Details
	case Answered:
		first(&c.A2)
		c.Over = true
	default: // no edge of the timeline
	}
	if s.Kind != Recalled && e.Code != fault.OK {
		c.Code = e.Code
	}
	c.Attempts = max(c.Attempts, int(s.Attempt))
	if len(c.Steps) < MaxSteps {
		c.Steps = append(c.Steps, s)
		return
	}
	c.Steps[MaxSteps-1] = s
	c.Skipped++
}
