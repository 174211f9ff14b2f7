package gatekeeper

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// What cannot start is refused when it is deployed. Each blade that may run a program is asked beforehand whether it could: the
// file is there, it may be executed, it is for this machine, it has the content that was deployed. Who does not answer in time
// is not waited for: it may run the program, or fail to.

// checkPatience is how long to wait for a blade's answer. It may have to read a large file.
const checkPatience = 5 * time.Second

// startable is a blade's answer.
type startable struct {
	program, blade string
	why            string // it could not start the program; "" if it could
}

// checkStarts asks the blades whether they could start the programs of a deployment that are new, have changed, or are to have more nodes.
func (g *Gatekeeper) checkStarts(ctx context.Context, s resources.Spec) error {
	var answers <-chan startable
	asked := 0
	if err := g.do(ctx, func() { answers, asked = g.ctl.askChecks(s) }); err != nil {
		return err
	}
	patience, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	unable := map[string]map[string][]string{} // blades by program and reason
	for range asked {
		select {
		case v := <-answers:
			if v.why == "" {
				continue
			}
			if unable[v.program] == nil {
				unable[v.program] = map[string][]string{}
			}
			unable[v.program][v.why] = append(unable[v.program][v.why], v.blade)
		case <-patience.Done():
			return ctx.Err()
		}
	}
	for i := range s.Programs {
		if reasons := unable[s.Programs[i].Name]; reasons != nil {
			return fault.New(fault.BadRequest, "deploy "+s.Name, "program %s cannot start: %s. Put that right, or name the blades that can run it (blades: in the app file)",
				s.Programs[i].Name, reasonsText(reasons))
		}
	}
	return nil
}

// reasonsText says which blades have which reason: on s1, s2: there is no file /opt/p.
func reasonsText(reasons map[string][]string) string {
	var texts []string
	for reason, blades := range reasons {
		slices.Sort(blades)
		texts = append(texts, fmt.Sprintf("on %s: %s", strings.Join(blades, ", "), reason))
	}
	slices.Sort(texts)
	return strings.Join(texts, "; ")
}

// askChecks asks the blades that may run them. The channel has room for all answers.
func (c *controller) askChecks(s resources.Spec) (_ <-chan startable, asked int) {
	type question struct {
		port           *port
		program, blade string
		start          control.Start
	}
	var questions []question
	for _, p := range c.fleet.Fresh(s) {
		for _, name := range c.fleet.Candidates(p) {
			if b := c.blades[name]; b != nil && b.alive() {
				questions = append(questions, question{b.port, p.Name, name, control.Start{Name: s.Name + "/" + p.Name, Args: p.Args, Binary: p.Binary}})
			}
		}
	}
	answers := make(chan startable, len(questions))
	for _, q := range questions {
		err := q.port.ask(c.now, control.KindCheck, q.start, func(m control.Message) {
			v := startable{program: q.program, blade: q.blade}
			if m.Status != fault.OK && m.Status != fault.Stale {
				v.why = string(m.Body)
			}
			answers <- v
		})
		if err == nil {
			asked++
		}
	}
	return answers, asked
}

// mayRead refuses a service whose program says that it does not read the state that is kept.
func (c *controller) mayRead(n *node, e *control.Export) error {
	if e.State == nil {
		return nil
	}
	actions, why := c.fleet.Announced(n.address, e.Service, resources.Form{Kept: e.State.Kept, Reads: e.State.Reads}, c.now)
	c.act(actions)
	if why != "" {
		return fault.New(fault.BadRequest, "export", "%s", why)
	}
	return nil
}
