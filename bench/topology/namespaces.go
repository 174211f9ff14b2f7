package topology

import (
	"context"
	"errors"
	"net/netip"
	"os/exec"
	"time"

	"github.com/bifrost-rack/bifrost/bench/report"
	"github.com/bifrost-rack/bifrost/rack"
	"github.com/bifrost-rack/bifrost/rack/config"
)

// Namespaces is a rack of network namespaces of its own.
type Namespaces struct {
	Host   *rack.Host
	Config config.Config

	release   func() error // gives the name back
	addresses map[string]netip.Addr
}

// Up makes a rack by a description, without its programs: they would only take
// part in what is measured. What a killed run of the same name has left is removed
// first, which progress is told; what is not a run's is refused by name.
func Up(ctx context.Context, h *rack.Host, c config.Config, progress func(format string, args ...any)) (*Namespaces, error) {
	c.Programs = nil
	if err := c.Validate(); err != nil {
		return nil, err
	}
	release, err := Claim(ctx, h, c.Name, progress)
	if err != nil {
		return nil, err
	}
	progress("making the rack %s", c.Name)
	if err := h.Up(ctx, c); err != nil {
		return nil, errors.Join(err, release())
	}
	n := &Namespaces{Host: h, Config: c, release: release, addresses: map[string]netip.Addr{}}
	st, err := h.Status(c.Name)
	for _, b := range st.Blades {
		if a, perr := netip.ParseAddr(b.Address); perr == nil {
			n.addresses[b.Name] = a
		}
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// downTimeout bounds the removal of a rack.
const downTimeout = time.Minute

// Close removes the rack.
func (n *Namespaces) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), downTimeout)
	defer cancel()
	return errors.Join(n.Host.Down(ctx, n.Config.Name), n.release())
}

// Start implements Topology.
func (n *Namespaces) Start(blade string, cmd *exec.Cmd) error {
	return n.Host.Start(n.Config.Name, blade, cmd)
}

// Address implements Topology.
func (n *Namespaces) Address(blade string) (netip.Addr, error) {
	a, ok := n.addresses[blade]
	if !ok {
		return a, noBlade(blade)
	}
	return a, nil
}

// Describe implements Topology.
func (n *Namespaces) Describe() report.Topology {
	t := report.Topology{Kind: "namespaces", Switch: string(n.Config.Switch), MTU: n.Config.MTU, Protected: true}
	for _, b := range n.Config.Blades {
		t.Blades = append(t.Blades, b.Name)
	}
	return t
}
