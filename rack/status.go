package rack

import (
	"time"

	"github.com/bifrost-rack/bifrost/rack/internal/kernel"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// Status is what a rack looks like now.
type Status struct {
	Rack    string    `json:"rack"`
	Switch  string    `json:"switch"`
	Created time.Time `json:"created"`
	// Complete is false while the rack starts, or if its start was killed.
	Complete bool `json:"complete"`
	// Blades in the order of their ports, before them switch and Gatekeeper.
	Blades []BladeStatus `json:"blades"`
}

// BladeStatus is one blade, or the switch or the Gatekeeper.
type BladeStatus struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	Port      int    `json:"port,omitempty"`
	Address   string `json:"address,omitempty"`
	// Link is whether its switch port is up.
	Link      bool            `json:"link"`
	Processes []ProcessStatus `json:"processes"`
}

// ProcessStatus is one process that the rack has started, or one of its programs
// that the Gatekeeper has, on the blade where that is now.
type ProcessStatus struct {
	Name string `json:"name"`
	PID  int    `json:"pid,omitempty"`
	// State is running, paused or gone; of a program, waiting, starting, running or
	// ending, or unknown if the Gatekeeper does not answer.
	State string `json:"state"`
}

// Status returns a rack's status.
func (h *Host) Status(rack string) (Status, error) {
	s, err := h.open(rack)
	if err != nil {
		return Status{}, err
	}
	// Without the switch's namespace, as after a killed start, no port is up.
	down, err := kernel.DownPorts(plan.Namespace(rack, plan.Switch))
	there := err == nil
	st := Status{Rack: rack, Switch: string(s.Plan.Switch), Created: s.Created, Complete: s.Complete}
	for _, name := range []string{plan.Switch, plan.Gatekeeper} {
		st.Blades = append(st.Blades, BladeStatus{
			Name: name, Namespace: plan.Namespace(rack, name), Link: there, Processes: s.processes(name),
		})
	}
	programs := h.whereabouts(&s.Plan)
	for _, w := range s.Plan.Wires {
		st.Blades = append(st.Blades, BladeStatus{
			Name: w.Blade, Namespace: w.BladeNamespace, Port: w.Port, Address: w.Address.String(),
			Link: there && !down[w.SwitchInterface], Processes: append(s.processes(w.Blade), programs[w.Blade]...),
		})
	}
	return st, nil
}

// processes returns the state of a blade's processes.
func (s *state) processes(blade string) []ProcessStatus {
	var list []ProcessStatus
	for _, p := range s.Plan.Of(blade) {
		id, started := s.Running[p.Name]
		ps := ProcessStatus{Name: p.Name, State: string(kernel.Gone)}
		if started {
			ps.PID, ps.State = id.PID, string(id.State())
		}
		list = append(list, ps)
	}
	return list
}
