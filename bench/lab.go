package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"time"

	"github.com/bifrost-rack/bifrost/bench/agent"
	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/topology"
	"github.com/bifrost-rack/bifrost/rack/config"
)

// Blades that experiments use.
const (
	clientBlade = "c1"
	serverBlade = "s1"
	otherBlade  = "s2"
	memoryBlade = "m1"
)

// Lab is where experiments run.
type Lab struct {
	topology.Topology
	// Bifrost is the path of the bifrost binary, which is the agents', too.
	Bifrost string
	// Rack is what experiments with a rack of their own make it from.
	Rack config.Config
	CPUs CPUs
	Pace Pace
	// Progress is told what is being done.
	Progress func(format string, args ...any)
}

// unmirrored describes the rack with one copy of its memory.
func (l *Lab) unmirrored() config.Config {
	c := l.Rack
	c.Unmirrored()
	return c
}

// onOwn runs an experiment on a rack of its own, which is made for it.
func (l *Lab) onOwn(ctx context.Context, c config.Config, f func(l *Lab, n *topology.Namespaces) error) error {
	n, err := topology.Up(ctx, host(l.Bifrost), c, l.Progress)
	if err != nil {
		return err
	}
	own := *l
	own.Topology = n
	return errors.Join(f(&own, n), n.Close())
}

// Pace is how long to measure.
type Pace struct {
	// Warmup and Measure are of every point, contender and repeat.
	Warmup, Measure time.Duration
	Repeats         int
	// Fewer has experiments leave out points.
	Fewer bool
}

// Paces to choose from.
var (
	Thorough = Pace{Warmup: 50 * time.Millisecond, Measure: 200 * time.Millisecond, Repeats: 3}
	Quick    = Pace{Warmup: 10 * time.Millisecond, Measure: 30 * time.Millisecond, Repeats: 2, Fewer: true}
)

// start starts an agent on a blade.
func (l *Lab) start(name, blade string) (*agent.Process, error) {
	cmd := exec.Command(l.Bifrost, agent.Args(l.CPUs.of(blade))...)
	return agent.Start(name+" on "+blade, cmd, func(c *exec.Cmd) error { return l.Start(blade, c) })
}

// pair is a contender's client and servers.
type pair struct {
	peer    peer.Peer
	client  *agent.Process
	servers []*agent.Process
}

// pair starts a peer's servers on blades and its client.
func (l *Lab) pair(ctx context.Context, p peer.Peer, chain bool, blades ...string) (_ *pair, err error) {
	c := &pair{peer: p}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	var servers []netip.Addr
	for _, b := range blades {
		a, err := l.Address(b)
		if err != nil {
			return nil, err
		}
		servers = append(servers, a)
	}
	site := peer.NewSite(p.Name, chain, servers...)
	for i, b := range blades {
		server, err := l.start(p.Name+"'s server", b)
		if err != nil {
			return nil, err
		}
		c.servers = append(c.servers, server)
		site.Index = i
		if _, err := server.Ask(ctx, agent.Request{Serve: &agent.Role{Peer: p.Name, Site: site}}); err != nil {
			return nil, err
		}
	}
	if c.client, err = l.start(p.Name+"'s client", clientBlade); err != nil {
		return nil, err
	}
	site.Index = 0
	_, err = c.client.Ask(ctx, agent.Request{Dial: &agent.Role{Peer: p.Name, Site: site}})
	return c, err
}

// close ends all processes, the client first.
func (c *pair) close() {
	if c.client != nil {
		c.client.Close()
	}
	for _, s := range c.servers {
		s.Close()
	}
}

// errUnprotected is why something is not measured over a switch without P4.
var errUnprotected = errors.New("this switch carries baselines only: no routing by pointer or method, no protection")

// able returns the peers that can be measured here, and says why others cannot.
func (l *Lab) able(names []string) (peers []peer.Peer, notes []string, err error) {
	for _, name := range names {
		p, err := peer.Find(name)
		if err != nil {
			return nil, nil, err
		}
		err = nil
		switch {
		case p.Managed && !l.Describe().Protected:
			err = errUnprotected
		case p.Missing != nil:
			err = p.Missing()
		}
		if err != nil {
			notes = append(notes, fmt.Sprintf("%s was not measured: %v", p.Title, err))
			l.Progress("%s", notes[len(notes)-1])
			continue
		}
		peers = append(peers, p)
	}
	return peers, notes, nil
}
