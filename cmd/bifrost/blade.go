//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/bifrost-rack/bifrost/daemon"
	"github.com/bifrost-rack/bifrost/internal/guard"
	"github.com/bifrost-rack/bifrost/internal/netio/linux"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/p4switch/shared/metrics"
	"github.com/bifrost-rack/bifrost/p4switch/shared/process"
	"github.com/bifrost-rack/bifrost/p4switch/shared/sdnotify"
)

// bladeOptions are the flags that the daemons of both kinds of blades have.
type bladeOptions struct {
	name    string
	iface   string
	address string
	logging process.LogOptions
	metrics string
	anybody bool
}

func (o *bladeOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.name, "blade", "", "the blade's `NAME`, unique in the rack (default: the machine's name)")
	f.StringVar(&o.iface, "iface", "eth0", "the `INTERFACE` that is connected to the switch")
	f.StringVar(&o.address, "address", "", "IPv6 `ADDRESS`, in "+rackaddr.BladePrefix.String()+
		", from which the blade says hello; the Gatekeeper then assigns the blade's own address (default: an address that the interface has, or else one made from its MAC address)")
	o.logging.Register(f, "")
	f.BoolVar(&o.anybody, "no-guard", false, "do without nftables, for a kernel that has none: every user of this machine can then send from the addresses of all its nodes")
	f.StringVar(&o.metrics, "metrics-addr", "", "serve the daemon's metrics (memory, descriptors, goroutines) to Prometheus at `ADDRESS`, path /metrics: HOST:PORT or unix:PATH")
}

// serveMetrics serves metrics, if they are asked for, until stop is called.
func (o *bladeOptions) serveMetrics(ctx context.Context, g *guard.Guard, more ...prometheus.Collector) (stop func(), err error) {
	if o.metrics == "" {
		return func() {}, nil
	}
	if g != nil {
		more = append(more, g)
	}
	return metrics.Serve(ctx, o.metrics, more...)
}

// guard keeps the users of this machine apart until it is closed; it is nil with
// --no-guard.
func (o *bladeOptions) guard() (*guard.Guard, error) {
	if o.anybody {
		return nil, nil //nolint:nilnil // as documented
	}
	g, err := guard.Open(o.iface)
	if err != nil {
		return nil, fmt.Errorf("%w; to do without nftables, give --no-guard: each user of this machine can then send from the addresses of all its nodes", err)
	}
	return g, nil
}

// closeGuard closes a guard, if there is one.
func closeGuard(g *guard.Guard) error {
	if g == nil {
		return nil
	}
	return g.Close()
}

// open prepares the interface and describes the blade. Whoever gets the stack must
// Close it.
func (o *bladeOptions) open() (daemon.Blade, *linux.Stack, error) {
	log, err := o.logging.Open()
	if err != nil {
		return daemon.Blade{}, nil, err
	}
	if o.name == "" {
		if o.name, err = os.Hostname(); err != nil {
			return daemon.Blade{}, nil, fmt.Errorf("%w: name the blade with --blade", err)
		}
	}
	stack, err := linux.Open(o.iface)
	if err != nil {
		return daemon.Blade{}, nil, fmt.Errorf("--iface %s: %w", o.iface, err)
	}
	b, err := o.describe(stack, log)
	if err != nil {
		return daemon.Blade{}, nil, errors.Join(err, stack.Close())
	}
	return b, stack, nil
}

// describe finds the blade's address and makes the interface ready for the rack.
func (o *bladeOptions) describe(stack *linux.Stack, log *slog.Logger) (daemon.Blade, error) {
	mac, err := frame.ParseMAC(stack.MAC().String())
	if err != nil {
		return daemon.Blade{}, fmt.Errorf("--iface %s: it has no Ethernet address: choose the one towards the switch", o.iface)
	}
	address, err := o.bladeAddress(stack, mac)
	if err != nil {
		return daemon.Blade{}, err
	}
	if err := stack.SendOwnTrafficOut(rackaddr.RackPrefix); err != nil {
		return daemon.Blade{}, err
	}
	return daemon.Blade{
		Name: o.name, Stack: stack, Address: address, MAC: mac, Log: log, Registered: tellReadyOnce(log),
		Spec: map[string]string{"cpus": strconv.Itoa(runtime.NumCPU()), "arch": runtime.GOARCH, "mtu": strconv.Itoa(stack.MTU())},
	}, nil
}

// bladeAddress returns the address to say hello from: the one asked for, one that
// the interface has already, or one made from its MAC address. The interface has
// it afterwards.
func (o *bladeOptions) bladeAddress(stack *linux.Stack, mac frame.MAC) (netip.Addr, error) {
	a, found := stack.Address(rackaddr.BladePrefix)
	switch {
	case o.address != "":
		var err error
		if a, err = netip.ParseAddr(o.address); err != nil || !rackaddr.BladePrefix.Contains(a) {
			return netip.Addr{}, fmt.Errorf("--address %s: want an address in %s, such as %s", o.address, rackaddr.BladePrefix, rackaddr.Blade(1))
		}
	case !found:
		a = addressFromMAC(mac)
	}
	return a, stack.AddAddress(a)
}

// addressFromMAC is where a blade speaks from that has no address: unique, as MAC
// addresses are.
func addressFromMAC(mac frame.MAC) netip.Addr {
	var n uint64
	for _, b := range mac {
		n = n<<8 | uint64(b)
	}
	return rackaddr.Blade(n)
}

// tellReadyOnce tells whoever started us that the blade is registered, once.
func tellReadyOnce(log *slog.Logger) func() {
	return sync.OnceFunc(func() {
		if err := sdnotify.Ready(); err != nil {
			log.Warn("cannot tell that the blade is registered", "error", err)
		}
	})
}
