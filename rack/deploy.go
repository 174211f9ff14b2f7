package rack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// askTimeout bounds a question to the Gatekeeper that a status can do without.
const askTimeout = time.Second

// deploy has the Gatekeeper run the rack's programs that serve, and returns when all
// of them do.
func (h *Host) deploy(ctx context.Context, p *plan.Plan) error {
	if len(p.Deployed) == 0 {
		return nil
	}
	c, err := client.New(client.Config{Address: "unix:" + h.AdminSocket(p.Rack)})
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Deploy(ctx, plan.App, appSpec(p)); err != nil {
		return &Error{Rack: p.Rack, Msg: "the Gatekeeper does not take the programs: " + err.Error(), Err: ErrNotReady}
	}
	waiting, cancel := context.WithTimeout(ctx, h.timeout())
	defer cancel()
	var last error
	err = poll(waiting, func() bool {
		if err := serving(waiting, c, p); err == nil || waiting.Err() == nil || last == nil {
			last = err // and not that the time is over
		}
		return last == nil || errors.Is(last, errBroken)
	})
	switch {
	case err == nil && last == nil:
		h.progress("programs: serving")
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	}
	return h.notServing(p, last)
}

func appSpec(p *plan.Plan) (spec api.AppSpec) {
	for _, d := range p.Deployed {
		program := api.Program{Name: d.Name, Args: d.Args, Env: d.Env, Nodes: 1, Blades: d.Blades}
		for _, s := range d.Services {
			program.Services = append(program.Services, api.ProgramService{Name: s, Stateful: d.Stateful})
		}
		spec.Programs = append(spec.Programs, program)
	}
	return spec
}

// errBroken is a program that does not even stay alive.
var errBroken = errors.New("it keeps ending")

// brokenAfter is after how many failures in a row a program is not waited for.
const brokenAfter = 3

// notServingError says which program does not serve.
type notServingError struct {
	program plan.Deployed
	msg     string
	err     error
}

func (e *notServingError) Error() string { return e.program.Name + " " + e.msg }
func (e *notServingError) Unwrap() error { return e.err }

// serving reports why the programs do not all serve; nil if they do.
func serving(ctx context.Context, c *client.Client, p *plan.Plan) error {
	app, err := c.App(ctx, plan.App)
	if err != nil {
		return err
	}
	services, err := c.Services(ctx)
	if err != nil {
		return err
	}
	for _, d := range p.Deployed {
		k := slices.IndexFunc(app.Instances, func(i api.Instance) bool { return i.Program == d.Name }) // which in a rack made from a backup may have another number
		switch {
		case k < 0:
			return &notServingError{d, "is not started", nil}
		case app.Instances[k].Failures >= brokenAfter:
			return &notServingError{d, "ends again and again", errBroken}
		}
		for _, name := range d.Services {
			if !slices.ContainsFunc(services, func(s api.Service) bool {
				return s.Name == name && slices.Contains(s.Nodes, app.Instances[k].Node)
			}) {
				return &notServingError{d, "does not serve " + name, nil}
			}
		}
	}
	return nil
}

// notServing is the error of programs that do not come up, with what one of them has
// printed.
func (h *Host) notServing(p *plan.Plan, why error) error {
	e := &Error{Rack: p.Rack, Msg: fmt.Sprintf("its programs do not serve after %v: %v", h.timeout(), why), Err: ErrNotReady}
	var n *notServingError
	if !errors.As(why, &n) {
		return e
	}
	if errors.Is(why, errBroken) {
		e.Msg = n.Error()
	}
	var last strings.Builder
	if err := programLog(h.dir(p.Rack), p, &n.program).Print(context.Background(), &last, logTail, false); err == nil && last.Len() > 0 {
		e.Msg += "; it printed last:\n" + indent(strings.TrimRight(last.String(), "\n"))
	}
	return e
}

// programLog is what a program prints, wherever it runs.
func programLog(dir string, p *plan.Plan, d *plan.Deployed) Log {
	l := Log{Process: d.Name, Instance: d.Instance()}
	for _, w := range p.Wires {
		l.Kept = append(l.Kept, plan.ProgramLogs(dir, w.Blade))
	}
	return l
}

// whereabouts asks the Gatekeeper where the rack's programs are. Without it, they are
// where they were to be, in a state that nobody knows.
func (h *Host) whereabouts(p *plan.Plan) map[string][]ProcessStatus {
	at := map[string][]ProcessStatus{}
	if len(p.Deployed) == 0 {
		return at
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	var app api.App
	if c, err := client.New(client.Config{Address: "unix:" + h.AdminSocket(p.Rack)}); err == nil {
		defer c.Close()
		app, _ = c.App(ctx, plan.App) // none: unknown
	}
	for _, d := range p.Deployed {
		blade, ps := d.Blades[0], ProcessStatus{Name: d.Name, State: "unknown"}
		for _, i := range app.Instances {
			if i.Name == d.Instance() {
				ps.State = i.Status
				if i.Blade != "" {
					blade = i.Blade
				}
			}
		}
		at[blade] = append(at[blade], ps)
	}
	return at
}
