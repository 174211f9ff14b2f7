package rack

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// awaitCopies returns when every memory machine that two blades serve has two copies, so
// that either blade may die from the first program on.
func (h *Host) awaitCopies(ctx context.Context, p *plan.Plan) error {
	if !p.Mirrored() {
		return nil
	}
	c, err := client.New(client.Config{Address: "unix:" + h.AdminSocket(p.Rack)})
	if err != nil {
		return err
	}
	defer c.Close()
	waiting, cancel := context.WithTimeout(ctx, h.timeout())
	defer cancel()
	var machines []api.Machine
	var last error
	single := func(m api.Machine) bool { return len(m.Blades) > 1 && (m.InService < 2 || m.Why != "") }
	err = poll(waiting, func() bool {
		machines, last = c.Machines(waiting)
		return last == nil && !slices.ContainsFunc(machines, single)
	})
	switch {
	case err == nil:
		h.tellMachines(machines)
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	if i := slices.IndexFunc(machines, single); last == nil && i >= 0 {
		last = fmt.Errorf("machine %d: %s", machines[i].Machine, machines[i].Why)
	}
	return &Error{Rack: p.Rack, Msg: fmt.Sprintf("its memory has no second copies after %v: %v", h.timeout(), last), Err: ErrNotReady}
}

// tellMachines says which memory blades may die, and which must not.
func (h *Host) tellMachines(machines []api.Machine) {
	for _, m := range machines {
		if len(m.Blades) > 1 {
			h.progress("memory: %s hold a copy each", strings.Join(m.Blades, " and "))
			continue
		}
		h.progress("memory: %s is alone: what it holds is lost with it", m.Blades[0])
	}
}
