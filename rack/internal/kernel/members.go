package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Group is some namespaces whose processes are dealt with together.
type Group []*Namespace

// OpenGroup opens the namespaces of these names. Names of what is no namespace
// (any more) are left out: there are no processes in it.
func OpenGroup(names []string) (Group, error) {
	var g Group
	for _, name := range names {
		ns, err := OpenNamespace(name)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			g.Close()
			return nil, err
		}
		g = append(g, ns)
	}
	return g, nil
}

// Close closes the namespaces.
func (g Group) Close() {
	for _, ns := range g {
		ns.close()
	}
}

// Members returns the processes in the group, this one excepted. It is a
// snapshot: processes come and go.
func (g Group) Members() ([]Process, error) {
	ids := map[netnsID]bool{}
	for _, ns := range g {
		ids[ns.id] = true
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var members []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		p, err := Identify(pid)
		if err == nil && ids[namespaceOf(pid)] && p.State() != Gone {
			members = append(members, p)
		}
	}
	return members, nil
}

// namespaceOf returns the namespace of a process, the zero id if it has ended.
func namespaceOf(pid int) netnsID {
	var st unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d/ns/net", pid), &st) != nil {
		return netnsID{}
	}
	return netnsID{st.Dev, st.Ino}
}

// Signal sends a signal to every process in the group.
func (g Group) Signal(sig unix.Signal) error {
	members, err := g.Members()
	for _, p := range members {
		err = errors.Join(err, p.Signal(sig))
	}
	return err
}

// Kill ends every process in the group with SIGKILL and returns when none is
// left, however fast they fork.
func (g Group) Kill(ctx context.Context) error {
	for {
		members, err := g.Members()
		if err != nil || len(members) == 0 {
			return err
		}
		for _, p := range members {
			if err := p.Signal(unix.SIGKILL); err != nil {
				return err
			}
		}
		for _, p := range members {
			if err := p.Wait(ctx); err != nil {
				return fmt.Errorf("process %d does not end: %w", p.PID, err)
			}
		}
	}
}

// Stop asks every process in the group to end (SIGTERM), waits for up to grace,
// and kills what is left.
func (g Group) Stop(ctx context.Context, grace time.Duration) error {
	members, err := g.Members()
	if err != nil {
		return err
	}
	patience, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	for _, p := range members {
		// A paused process gets its SIGTERM only when it goes on.
		if err := errors.Join(p.Signal(unix.SIGTERM), p.Signal(unix.SIGCONT)); err != nil {
			return err
		}
	}
	for _, p := range members {
		if p.Wait(patience) != nil {
			break // the kill below deals with the impatient and the deaf alike
		}
	}
	return g.Kill(ctx)
}
