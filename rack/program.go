package rack

import (
	"bytes"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/rack/internal/kernel"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// SignalProgram signals the process of a program that the Gatekeeper has started on
// the rack, by the name of its instance (APP/PROGRAM/NUMBER), and tells how many
// there were: none while it is being started, two if one of them is fenced and has
// not been told yet.
func (h *Host) SignalProgram(rack, instance string, sig unix.Signal) (int, error) {
	if err := needRoot(); err != nil {
		return 0, err
	}
	s, err := h.open(rack)
	if err != nil {
		return 0, err
	}
	return s.signalProgram(instance, sig)
}

// ProgramPIDs returns the ids of the processes that run an instance of a program.
func (h *Host) ProgramPIDs(rack, instance string) (pids []int, err error) {
	if err := needRoot(); err != nil {
		return nil, err
	}
	s, err := h.open(rack)
	if err != nil {
		return nil, err
	}
	err = s.eachOf(instance, func(p kernel.Process) error {
		pids = append(pids, p.PID)
		return nil
	})
	return pids, err
}

func (s *state) signalProgram(instance string, sig unix.Signal) (count int, err error) {
	err = s.eachOf(instance, func(p kernel.Process) error {
		err := p.Signal(sig)
		if err == nil {
			count++
		}
		return err
	})
	return count, err
}

// eachOf calls f for the processes that run an instance of a program, until it fails.
func (s *state) eachOf(instance string, f func(kernel.Process) error) error {
	var blades []string
	for _, w := range s.Plan.Wires {
		blades = append(blades, w.BladeNamespace)
	}
	g, err := kernel.OpenGroup(blades)
	if err != nil {
		return err
	}
	defer g.Close()
	members, err := g.Members()
	if err != nil {
		return err
	}
	for _, p := range members {
		if !runs(p.PID, instance) {
			continue
		}
		if err := f(p); err != nil {
			return err
		}
	}
	return nil
}

// runs reports whether a process was started as an instance of a program.
func runs(pid int, instance string) bool {
	env, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	return err == nil && slices.ContainsFunc(bytes.Split(env, []byte{0}), func(kv []byte) bool {
		return string(kv) == join.ProgramVariable+"="+instance
	})
}

// deployed returns one of the rack's programs that serve.
func (s *state) deployed(name string) (plan.Deployed, bool) {
	k := slices.IndexFunc(s.Plan.Deployed, func(d plan.Deployed) bool { return d.Name == name })
	if k < 0 {
		return plan.Deployed{}, false
	}
	return s.Plan.Deployed[k], true
}
