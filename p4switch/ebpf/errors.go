package ebpf

import (
	"fmt"
	"strings"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

// Lack is one thing that a program uses and this executor cannot do.
type Lack struct {
	// Where is the part of the program that uses it, as in `action "ingress.set"`.
	Where string
	// Feature is what it uses.
	Feature string
}

func (l Lack) String() string { return l.Where + ": " + l.Feature }

// UnsupportedError tells what of a program eBPF lacks. It matches
// datapath.ErrUnsupported.
type UnsupportedError struct{ Lacks []Lack }

// Error names every place.
func (e *UnsupportedError) Error() string {
	var s []string
	for _, l := range e.Lacks {
		s = append(s, l.String())
	}
	return fmt.Sprintf("eBPF lacks what the program uses: %s", strings.Join(s, "; "))
}

// Unwrap makes errors.Is(err, datapath.ErrUnsupported) work.
func (e *UnsupportedError) Unwrap() error { return datapath.ErrUnsupported }
