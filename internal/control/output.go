package control

import "net/netip"

// OutputPartSize is how many bytes of text an OutputPart has at most. Its JSON, in which a
// byte may take six, fits MaxMessage.
const OutputPartSize = 128 << 10

// CancelCall has a node cancel a call that it runs, if it still does.
type CancelCall struct {
	Node netip.Addr `json:"node"`
	Call string     `json:"call"` // in hexadecimal
	// Deadlock says why the call would wait for itself. Then it is refused as a Deadlock, if it
	// still waits for its turn; else nothing happens.
	Deadlock string `json:"deadlock,omitempty"`
}

// Output asks a compute blade what programs have printed there.
type Output struct {
	// Program is the name of a program (APP/PROGRAM/NUMBER), or what the names of several
	// begin with, up to a slash.
	Program string `json:"program"`
	// After leaves out lines up to this time, ns since 1970; no two lines of a blade have
	// the same.
	After int64 `json:"after,omitempty"`
	// Last, unless it is 0, asks for so many of the latest lines, not for the first ones.
	Last int `json:"last,omitempty"`
	// Max is how many bytes of text are wanted at most, OutputPartSize at most.
	Max int `json:"max"`
}

// OutputPart is lines in the order of their times.
type OutputPart struct {
	Lines []OutputLine `json:"lines,omitempty"`
	// More says that there are others: behind these, or before them if the last were asked
	// for.
	More bool `json:"more,omitempty"`
	// Dropped is how many lines the blade could not keep since its daemon began.
	Dropped uint64 `json:"dropped,omitempty"`
}

// OutputLine is one line that a program has printed.
type OutputLine struct {
	Program string `json:"p"`
	Time    int64  `json:"t"` // ns since 1970, by the blade's clock
	Text    string `json:"x"`
}
