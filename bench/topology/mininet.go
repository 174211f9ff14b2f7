package topology

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"runtime"

	"github.com/vishvananda/netns"

	"github.com/bifrost-rack/bifrost/bench/report"
)

// Mininet is a rack under Mininet, as mininet/rack.py describes it to the
// benchmarks. Each blade is known by a process in its network namespace.
type Mininet struct {
	Switch    string  `json:"switch"`
	MTU       int     `json:"mtu"`
	Protected bool    `json:"protected"`
	Blades    []blade `json:"blades"`
}

type blade struct {
	Name    string     `json:"name"`
	PID     int        `json:"pid"`
	Address netip.Addr `json:"address"`
}

// ReadMininet reads a description.
func ReadMininet(path string) (*Mininet, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("topology: %w", err)
	}
	return parseMininet(path, b)
}

func parseMininet(path string, b []byte) (*Mininet, error) {
	m := &Mininet{}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("topology %s: %w", path, err)
	}
	for _, b := range m.Blades {
		if b.Name == "" || b.PID <= 0 || !b.Address.Is6() {
			return nil, fmt.Errorf("topology %s: blade %q has process %d and address %s", path, b.Name, b.PID, b.Address)
		}
	}
	if len(m.Blades) == 0 {
		return nil, fmt.Errorf("topology %s: no blades", path)
	}
	return m, nil
}

func (m *Mininet) blade(name string) (blade, error) {
	for _, b := range m.Blades {
		if b.Name == name {
			return b, nil
		}
	}
	return blade{}, noBlade(name)
}

// Start implements Topology.
func (m *Mininet) Start(name string, cmd *exec.Cmd) error {
	b, err := m.blade(name)
	if err != nil {
		return err
	}
	there, err := netns.GetFromPid(b.PID)
	if err != nil {
		return fmt.Errorf("blade %s: network of process %d: %w", name, b.PID, err)
	}
	defer func() { _ = there.Close() }() // only a descriptor
	return inside(there, cmd.Start)
}

// inside runs f on a thread that is in a network namespace. If the thread cannot
// be taken home, it ends with its goroutine.
func inside(ns netns.NsHandle, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("this thread's network namespace: %w", err)
			return
		}
		if err = netns.Set(ns); err == nil {
			err = f()
		}
		back := netns.Set(home)
		if back == nil {
			runtime.UnlockOSThread()
		}
		done <- errors.Join(err, back, home.Close())
	}()
	return <-done
}

// Address implements Topology.
func (m *Mininet) Address(name string) (netip.Addr, error) {
	b, err := m.blade(name)
	return b.Address, err
}

// Describe implements Topology.
func (m *Mininet) Describe() report.Topology {
	t := report.Topology{Kind: "mininet", Switch: m.Switch, MTU: m.MTU, Protected: m.Protected}
	for _, b := range m.Blades {
		t.Blades = append(t.Blades, b.Name)
	}
	return t
}

// Close does nothing: the rack is Mininet's.
func (m *Mininet) Close() error { return nil }
