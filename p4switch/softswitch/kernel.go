package softswitch

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

// kernelExecutor is an executor that takes frames from interfaces by itself,
// before they come to this process.
type kernelExecutor interface {
	Executor
	// AttachPort makes a port one on an interface; with wait, it need not be
	// there yet.
	AttachPort(num datapath.Port, name string, wait bool) error
	// Announce tells where a port's packets go, ahead of AttachPort.
	Announce(num datapath.Port, name string) error
	DetachPort(num datapath.Port) error
	// portStats fills in the counters of a port and tells whether it is up.
	portStats(num datapath.Port, c *counters) bool
	// lost counts frames for ports that are not attached.
	lost() uint64
}

// errLocal: a kernel executor never sees the frames of ports in this process.
var errLocal = errors.New("ports in the same process need the Go executor")

// kernelPort is a port whose frames the executor handles in the kernel.
type kernelPort struct {
	sw     *Switch
	x      kernelExecutor
	p      *port
	tap    context.CancelFunc // ends the capture; nil if there is none
	tapped sync.WaitGroup
}

// attachKernel makes a port one of a kernel executor.
func (s *Switch) attachKernel(x kernelExecutor, num datapath.Port, name string, wait bool) (*port, error) {
	if err := x.AttachPort(num, name, wait); err != nil {
		return nil, err
	}
	p := &port{num: num, name: name}
	p.out = &kernelPort{sw: s, x: x, p: p}
	return p, nil
}

// transmit implements transmitter. Nobody has a frame for such a port but the
// executor, which does not ask.
func (k *kernelPort) transmit([]byte) { k.p.n.txDown.Add(1) }

// refresh implements link.
func (k *kernelPort) refresh() bool { return k.x.portStats(k.p.num, &k.p.n) }

// begin implements link: the port receives since it was attached, and is captured
// from now on.
func (k *kernelPort) begin() {
	if k.p.cap == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	k.tap = cancel
	k.tapped.Go(func() { k.sw.captureInterface(ctx, k.p) })
}

// end implements link: another executor takes the frames over first.
func (k *kernelPort) end() {
	if k.tap != nil {
		k.tap()
	}
}

// close implements link.
func (k *kernelPort) close() {
	k.end()
	_ = k.x.DetachPort(k.p.num)
	k.tapped.Wait()
}

// move gives all interfaces to the executor that is committed. Between two
// kernel executors no frame is lost; otherwise those of the moment in between
// are. Callers hold s.moving.
func (s *Switch) move(old, now Executor) {
	from, wasKernel := old.(kernelExecutor)
	to, isKernel := now.(kernelExecutor)
	if !wasKernel && !isKernel {
		return
	}
	for i := range s.ports {
		if p := s.ports[i].Load(); p != nil && isKernel {
			if l, ok := p.out.(link); ok {
				l.end() // all at once: each takes its time
				// The ports that move first send to those that have not yet. An
				// interface that is gone for now is announced when it is back.
				_ = to.Announce(p.num, p.name)
			}
		}
	}
	for i := range s.ports {
		p := s.ports[i].Load()
		if p == nil || p.name == "" {
			continue
		}
		if err := s.movePort(p, from, to); err != nil {
			s.log.Error("port lost", "port", p.num, "interface", p.name, "error", err)
		}
	}
}

// movePort gives one interface from an executor to another; nil is one that does
// not run in the kernel.
func (s *Switch) movePort(p *port, from, to kernelExecutor) error {
	if to == nil {
		if k, ok := p.out.(*kernelPort); ok {
			k.end()
			k.tapped.Wait()
		}
		if err := from.DetachPort(p.num); err != nil {
			return err
		}
		p.stats() // the last ones
		next, err := s.openInterface(p.num, p.name)
		if err == nil {
			next.cap = p.cap
			next.follows(p)
			s.ports[p.num].Store(next)
			next.out.(link).begin()
		}
		return err
	}
	if from == nil {
		p.stats() // what the kernel has dropped, while there is a socket to ask
		p.out.(link).close()
	}
	next, err := s.attachKernel(to, p.num, p.name, true)
	if err != nil {
		return err
	}
	next.cap = p.cap
	if k, ok := p.out.(*kernelPort); ok {
		k.tapped.Wait() // move has ended it
	}
	next.follows(p)
	s.ports[p.num].Store(next)
	next.out.(link).begin()
	if from != nil {
		err = from.DetachPort(p.num)
		p.stats() // the last ones
		next.follows(p)
	}
	return err
}

// local tells whether some port is in this process.
func (s *Switch) local() bool {
	for i := range s.ports {
		if p := s.ports[i].Load(); p != nil && p.name == "" {
			return true
		}
	}
	return false
}

// kernel is the executor if it runs in the kernel, else nil.
func (s *Switch) kernel() kernelExecutor {
	if e := s.exec.Load(); e != nil {
		k, _ := (*e).(kernelExecutor)
		return k
	}
	return nil
}

// LoadAuto builds a kernel executor where that can run the program, and else the
// portable one, saying why. It fails with ErrOtherVersion where LoadEBPF does: the
// portable executor would have none of the registers and counters. It is a Loader.
func LoadAuto(deviceConfig []byte, env Env) (Executor, error) {
	x, err := LoadEBPF(deviceConfig, env)
	if err == nil || errors.Is(err, ErrOtherVersion) {
		return x, err
	}
	g, goErr := LoadGo(deviceConfig, env)
	if goErr != nil {
		return nil, goErr // the program is at fault, not the executor
	}
	env.Log.Warn("datapath: the Go executor, not eBPF", "because", err.Error())
	return g, nil
}

// suits tells whether a kernel executor can do what is asked of the switch.
func (e *Env) suits() error {
	switch {
	case e.Local:
		return errLocal
	case e.Log.Enabled(context.Background(), LevelTrace):
		return fmt.Errorf("tracing packets needs the Go executor")
	}
	return nil
}
