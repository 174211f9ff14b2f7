package join

import (
	"context"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
)

// Host is a compute daemon as its blade's programs reach it. Package daemon is
// one; package unixjoin brings programs to it. Methods may be called
// concurrently.
type Host interface {
	// Host makes a program a node; see Joiner.
	Host(ctx context.Context, p Program) (Hosted, error)
	// Status tells a user what the daemon knows. What a program was started with is told to root, the daemon's user, and the
	// program's own.
	Status(uid uint32) Status
}

// Program is what a program says of itself when it joins.
type Program struct {
	// Name is what people call the node.
	Name string
	// Instance is the name under which the daemon has started the program, ""
	// for one that somebody else has; ProgramVariable tells the program.
	Instance string
	// PID is the process, and UID the user that it runs as; both are the kernel's word,
	// and 0 in the simulated rack.
	PID int
	UID uint32
	// NoLedger is control.Join's.
	NoLedger bool
}

// ProgramVariable is the environment variable that tells a program the name
// under which its compute daemon has started it.
const ProgramVariable = "BIFROST_PROGRAM"

// DefaultName is what people call the node of a program that gives it no name: APP/PROGRAM, if the program was started under the name of
// an instance of a deployment (APP/PROGRAM/NUMBER), else the name of its executable.
func DefaultName(instance, executable string) string {
	if i := strings.LastIndexByte(instance, '/'); i > 0 {
		return instance[:i]
	}
	return filepath.Base(executable)
}

// Hosted is a Session seen from the daemon's side.
type Hosted interface {
	Session
	Canceller
	Accountant
	// HoldingsPage asks for a part of Holdings. Node and Incarnation are filled in by the session.
	HoldingsPage(ctx context.Context, q control.HoldingsQuery) (control.HoldingsPage, error)
	// Exited is Crash of a program that has ended. Something that the program did may be why.
	Exited(reason string)
	// Changed is closed when Rack has something new to tell; ask again for the
	// next time.
	Changed() <-chan struct{}
	// Thresholds is what the program is judged by, if the daemon has started it.
	Thresholds() Thresholds
	// Hung says that the program does not work any more, and why. A program that the daemon
	// has started is killed, and so its node crashes; it goes on as after any crash.
	Hung(reason string)
}

// Thresholds say when a program counts as hung; 0 is never.
type Thresholds struct {
	// Answer is for how long it may leave its daemon's question unanswered whether it is
	// alive. Only programs are asked that answer once (Pinged).
	Answer time.Duration
	// Progress is for how long one of its services may have calls waiting and take up none.
	Progress time.Duration
}

// Status is what a compute daemon knows of its blade, for people.
type Status struct {
	Blade      string          `json:"blade"`
	Address    netip.Addr      `json:"address"`
	Registered bool            `json:"registered"` // the Gatekeeper knows the blade
	Rack       control.Rack    `json:"rack"`
	Nodes      []NodeStatus    `json:"nodes"`
	Programs   []ProgramStatus `json:"programs"`
}

// NodeStatus is one node of a blade.
type NodeStatus struct {
	Name        string     `json:"name"`
	Address     netip.Addr `json:"address"`
	Incarnation uint32     `json:"incarnation"`
	Instance    string     `json:"instance,omitempty"`
	PID         int        `json:"pid,omitempty"`
	Services    []string   `json:"services"`
}

// ProgramStatus is one program that the daemon has started. Args is nil if they are not for who asks.
type ProgramStatus struct {
	Name string   `json:"name"`
	PID  int      `json:"pid"`
	Args []string `json:"args,omitempty"`
}
