package crash

import (
	"fmt"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/rpc"
)

// Kind is what an operation of a script does.
type Kind string

// The kinds of operations. "Folded" means that what is seen goes into the
// script's value.
const (
	Alloc      Kind = "alloc"      // a region of Size bytes, in Slot
	Write      Kind = "write"      // Size bytes at At of the region in Slot, made of the value
	Read       Kind = "read"       // those bytes, folded
	Free       Kind = "free"       // the region in Slot
	Call       Kind = "call"       // Service runs Body[0], is lent Lend; folded; its result region in Slot
	Post       Kind = "post"       // Service runs Body[0] one-way, is given Lend
	Try        Kind = "try"        // as Call, with policy none and no result: whether it fails goes into the noise
	Risk       Kind = "risk"       // as Call, without a result: it may fail since services wait for each other, or since its service is taken back, which goes into the noise
	Hurry      Kind = "hurry"      // as Call, but it is given up after Within, and has no result: what it comes to goes into the noise
	Fork       Kind = "fork"       // Body beside each other, each may read Lend; folded in order
	Race       Kind = "race"       // as Fork, but who ends first goes into the noise
	Add        Kind = "add"        // an entry in the service's state
	Bump       Kind = "bump"       // the counter in distributed memory that the service keeps
	Effect     Kind = "effect"     // something outside, counted by the operation's number
	Look       Kind = "look"       // at clock and dice; goes into the noise
	Checkpoint Kind = "checkpoint" // of a durable main
	Fail       Kind = "fail"       // the call ends with a declared exception
	Wait       Kind = "wait"       // for the time Within; no random program waits
)

// Op is one operation. N is its number, unique in the program.
type Op struct {
	N       int      `json:"n"`
	Kind    Kind     `json:"k"`
	Slot    int      `json:"s,omitempty"` // of a region; −1 for none
	Size    int      `json:"z,omitempty"`
	At      int      `json:"a,omitempty"`
	Service int      `json:"c,omitempty"`
	Lend    []int    `json:"l,omitempty"` // slots
	Body    []Script `json:"b,omitempty"`
	// Policy is that of a Call or Post, PolicyNone for the run's (Options.Policy).
	Policy rpc.Policy `json:"p,omitempty"`
	// Within is when a Hurry is given up, or how long a Wait takes. A Hurry is cancelled then if Cancel is set, else
	// that is its deadline.
	Within time.Duration `json:"w,omitempty"`
	Cancel bool          `json:"x,omitempty"`
}

// executes reports whether the body of an operation is an execution of Service.
func (op *Op) executes() bool {
	return op.Kind == Call || op.Kind == Post || op.Kind == Try || op.Kind == Hurry || op.Kind == Risk
}

// Script is what one execution, or one branch of it, does. Its first slots are the
// regions that it was lent or given.
type Script struct {
	Ops    []Op `json:"o"`
	Slots  int  `json:"n,omitempty"` // how many it has
	Result int  `json:"r"`           // the slot that it returns; −1 for none
}

// each calls f for every operation, with the service that carries it out, −1 for
// the client.
func (s *Script) each(service int, f func(service int, op *Op)) {
	for i := range s.Ops {
		op := &s.Ops[i]
		f(service, op)
		in := service
		if op.executes() {
			in = op.Service
		}
		for j := range op.Body {
			op.Body[j].each(in, f)
		}
	}
}

// usesMemory reports whether a program has regions.
func (p *Program) usesMemory() (uses bool) {
	for i := range p.Clients {
		p.Clients[i].Script.each(-1, func(_ int, op *Op) { uses = uses || op.Kind == Alloc || op.Kind == Bump })
	}
	return uses
}

// tried are the operations within tries: how often each is carried out is up to chance.
func (p *Program) tried() map[int]bool {
	inside := map[int]bool{}
	var walk func(s *Script, in bool)
	walk = func(s *Script, in bool) {
		for i := range s.Ops {
			op := &s.Ops[i]
			if in {
				inside[op.N] = true
			}
			for j := range op.Body {
				walk(&op.Body[j], in || op.Kind == Try)
			}
		}
	}
	for i := range p.Clients {
		walk(&p.Clients[i].Script, false)
	}
	return inside
}

// outer tells which call or one-way an operation is part of, for those that are part of one.
func (p *Program) outer() map[int]int {
	of := map[int]int{}
	var walk func(s *Script, in int)
	walk = func(s *Script, in int) {
		for i := range s.Ops {
			op, inner := &s.Ops[i], in
			if in != 0 {
				of[op.N] = in
			}
			if op.executes() {
				inner = op.N
			}
			for j := range op.Body {
				walk(&op.Body[j], inner)
			}
		}
	}
	for i := range p.Clients {
		walk(&p.Clients[i].Script, 0)
	}
	return of
}

// calledAgain are the operations of exactly-once calls that handlers of policy none make. A
// caller that crashes sends its try anew, and the handler makes another call; the call that
// the first handler made is logged, and goes on (docs/exactly-once.md, what it excludes). With k
// crashes there are up to k+1 such calls, and the one that follows the j-th crash runs up to
// k+1-j times: (k+1)(k+2)/2 runs together.
func (p *Program) calledAgain() map[int]bool {
	inside := map[int]bool{}
	for i := range p.Clients {
		p.Clients[i].Script.each(-1, func(_ int, op *Op) {
			if op.Kind != Try {
				return
			}
			op.Body[0].each(op.Service, func(_ int, call *Op) {
				if !call.executes() {
					return
				}
				call.Body[0].each(call.Service, func(_ int, in *Op) { inside[in.N] = true })
			})
		})
	}
	return inside
}

// write prints the script, indented.
func (s *Script) write(b *strings.Builder, indent string) {
	for _, op := range s.Ops {
		fmt.Fprintf(b, "%s%d %s", indent, op.N, op.Kind)
		switch op.Kind {
		case Alloc:
			fmt.Fprintf(b, " r%d = %d bytes", op.Slot, op.Size)
		case Write, Read:
			fmt.Fprintf(b, " r%d[%d:%d]", op.Slot, op.At, op.At+op.Size)
		case Free:
			fmt.Fprintf(b, " r%d", op.Slot)
		case Call, Post, Try, Hurry, Risk:
			fmt.Fprintf(b, " %s%s", ServiceName(op.Service), slots(op.Lend))
			if op.Kind == Hurry {
				fmt.Fprintf(b, " for %s", op.Within)
			}
			if op.Policy != rpc.PolicyNone {
				fmt.Fprintf(b, ", %s", op.Policy)
			}
			if op.Kind == Call && op.Slot >= 0 {
				fmt.Fprintf(b, " → r%d", op.Slot)
			}
		case Fork, Race:
			b.WriteString(slots(op.Lend))
		case Wait:
			fmt.Fprintf(b, " for %s", op.Within)
		}
		b.WriteByte('\n')
		for i := range op.Body {
			if len(op.Body) > 1 {
				fmt.Fprintf(b, "%s  branch %d\n", indent, i)
			}
			op.Body[i].write(b, indent+"    ")
		}
	}
	if s.Result >= 0 {
		fmt.Fprintf(b, "%sreturn r%d\n", indent, s.Result)
	}
}

func slots(s []int) string {
	var b strings.Builder
	b.WriteByte('(')
	for i, n := range s {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "r%d", n)
	}
	return b.String() + ")"
}

// ServiceName is what a service is called, and the program that exports it.
func ServiceName(i int) string { return string(rune('A' + i)) }

// Service is one service of a program.
type Service struct {
	Stateful bool
	Deltas   bool // tells its changes, not only snapshots
	Nodes    int  // that export it, at most 1 if it is stateful; 0 stands for 1
	Beside   bool // the program of the service before exports it, too
}

// Client is one who calls: a durable main, or a plain client.
type Client struct {
	Main   bool
	Script Script
}

// Name is the client's.
func (p *Program) clientName(i int) string {
	if p.Clients[i].Main {
		return fmt.Sprint("main", i)
	}
	return fmt.Sprint("client", i)
}

// Program is services and those who call them.
type Program struct {
	Services []Service
	Clients  []Client
	Ops      int  // numbers given
	Apart    bool // each service runs on a blade of its own; else they share
}

// String prints the program for people.
func (p *Program) String() string {
	var b strings.Builder
	if p.Apart {
		b.WriteString("services apart\n")
	}
	for i, s := range p.Services {
		fmt.Fprintf(&b, "service %s", ServiceName(i))
		switch {
		case s.Deltas:
			b.WriteString(", stateful with deltas")
		case s.Stateful:
			b.WriteString(", stateful")
		case s.Nodes > 1:
			fmt.Fprintf(&b, ", %d nodes", s.Nodes)
		}
		b.WriteByte('\n')
	}
	for i := range p.Clients {
		fmt.Fprintf(&b, "%s\n", p.clientName(i))
		p.Clients[i].Script.write(&b, "    ")
	}
	return b.String()
}
