// Package topology is the rack that a benchmark runs on, as far as it must know
// it: blades to start commands on, and their addresses. One is made of network
// namespaces for the run (namespaces.go), the other is Mininet's (mininet.go).
package topology

import (
	"fmt"
	"net/netip"
	"os/exec"

	"github.com/bifrost-rack/bifrost/bench/report"
)

// Topology is a rack that is up.
type Topology interface {
	// Start starts a command in a blade's network.
	Start(blade string, cmd *exec.Cmd) error
	// Address is a blade's own address.
	Address(blade string) (netip.Addr, error)
	// Describe says what it is.
	Describe() report.Topology
	// Close ends what was made for the run.
	Close() error
}

// noBlade is the error of a blade that is not there.
func noBlade(name string) error { return fmt.Errorf("the rack has no blade %s", name) }
