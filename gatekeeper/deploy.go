package gatekeeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/duration"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// What people do to the rack. All of these fail with ErrStopped if the Gatekeeper
// does not run, and with a *fault.Error if they make no sense: NotFound for a name
// that nobody has, BadRequest, Overloaded without enough room, Unavailable for a
// blade that is out of service.

// Deploy makes a deployment what the specification says: programs are started on
// free blades, watched, started again when they end, and moved when their blades
// fail. Programs that change are rolled out node by node, and rolled back if they do not
// become ready. It returns when that is decided, not when the programs run; Deployments and
// events tell how they do. A new deployment is taken as a whole or not at all. What a blade that may run it could not start is
// refused as BadRequest.
func (g *Gatekeeper) Deploy(ctx context.Context, s resources.Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if err := g.checkStarts(ctx, s); err != nil {
		return err
	}
	return g.operate(ctx, Event{Kind: AppDeployed, Name: s.Name}, func(c *controller) ([]resources.Action, error) {
		return c.fleet.Deploy(s, c.now)
	})
}

// Undeploy stops a deployment; it is gone when its last node is.
func (g *Gatekeeper) Undeploy(ctx context.Context, name string) error {
	return g.operate(ctx, Event{Kind: AppUndeployed, Name: name}, func(c *controller) ([]resources.Action, error) {
		return c.fleet.Undeploy(name, c.now)
	})
}

// Rollback gives a deployment the programs that it had before they changed last, and rolls
// that out. NotFound means that there are none.
func (g *Gatekeeper) Rollback(ctx context.Context, name string) error {
	return g.operate(ctx, Event{}, func(c *controller) ([]resources.Action, error) { // AppRolledBack
		actions, err := c.fleet.Rollback(name, c.now)
		if err == nil {
			c.event(Event{Kind: AppRolledBack, Name: name, Message: "by an operator"})
		}
		return actions, err
	})
}

// Restart has all nodes of a deployment stopped and started again, one of each program after
// the other: each finishes its calls first. It returns when that is decided; Deployments tells
// how far it is.
func (g *Gatekeeper) Restart(ctx context.Context, name string) error {
	return g.operate(ctx, Event{Kind: AppRestarted, Name: name}, func(c *controller) ([]resources.Action, error) {
		return c.fleet.Restart(name, c.now)
	})
}

// RunJob runs a finished job of a deployment again, with further arguments. It returns when that is decided.
func (g *Gatekeeper) RunJob(ctx context.Context, app, program string, args []string) error {
	return g.operate(ctx, Event{Kind: JobRun, Name: app + "/" + program, Message: strings.Join(args, " ")}, func(c *controller) ([]resources.Action, error) {
		return c.fleet.RunJob(app, program, args, c.now)
	})
}

// Deployments returns all deployments, by name.
func (g *Gatekeeper) Deployments(ctx context.Context) (all []resources.Deployment, err error) {
	err = g.do(ctx, func() { all = g.ctl.fleet.Deployments() })
	return all, err
}

// Drain lets a blade run empty: it takes no new nodes or regions, and deployed
// programs move elsewhere. A memory blade's copy moves first: the machine's other copy
// takes over, or a blade that serves nothing is filled and does; without either, the
// blade is empty when its regions have been freed. The cause is for people.
func (g *Gatekeeper) Drain(ctx context.Context, blade, cause string) error {
	return g.operate(ctx, Event{Kind: BladeDraining, Blade: blade, Message: cause}, func(c *controller) ([]resources.Action, error) {
		actions, err := c.fleet.Drain(blade, cause, c.now)
		if b := c.blades[blade]; err == nil && b != nil {
			actions = append(actions, c.fleet.Used(blade, b.used+uint64(c.keptAt(b)))...) //nolint:gosec // not negative
			c.moveCopy(blade)
		}
		return actions, err
	})
}

// MarkFailed takes a blade out of service at once, whatever it reports, until
// ReturnToService. Its nodes are fenced, its memory is unavailable. One of a machine's two
// copies goes when the blade of the other one has answered; Unavailable means that it has
// not within 5 s, and that the blade goes when the machine has two copies again. A blade that
// has the only copy goes at once.
func (g *Gatekeeper) MarkFailed(ctx context.Context, blade, cause string) error {
	out := make(chan struct{})
	if err := g.operate(ctx, Event{}, func(c *controller) ([]resources.Action, error) { // BladeFailed follows
		actions, err := c.fleet.MarkFailed(blade, cause, c.now)
		if err == nil {
			c.pullNow(blade, cause, out)
		}
		return actions, err
	}); err != nil {
		return err
	}
	switch _, err := awaitAnswer(ctx, g, out); {
	case err == nil:
		return g.logged(ctx)
	case errors.Is(err, ErrStopped):
		return err
	default:
		return refuseMirror(fault.Unavailable, "fail", ErrAway, "blade %s is marked failed, but the other blade of its machine does not answer: it goes when there are two copies again, or at once with another bifrost fail; bifrost return %s keeps it", blade, blade)
	}
}

// ReturnToService ends what Drain or MarkFailed began. A blade that was marked
// failed is in service again when its daemon has said hello, which it does within
// seconds if it runs. A memory blade without a copy becomes the second copy of its
// machine again.
func (g *Gatekeeper) ReturnToService(ctx context.Context, blade string) error {
	return g.operate(ctx, Event{Kind: BladeReturned, Blade: blade}, func(c *controller) ([]resources.Action, error) {
		actions, err := c.fleet.Return(blade, c.now)
		if err == nil {
			c.returned(blade)
		}
		return actions, err
	})
}

// operate has the registry asked in a turn, and what it wants carried out. It
// returns when what was decided is logged.
func (g *Gatekeeper) operate(ctx context.Context, e Event, f func(*controller) ([]resources.Action, error)) error {
	err := g.query(ctx, func(c *controller) error {
		actions, err := f(c)
		if err != nil {
			return err
		}
		if e.Kind != "" {
			c.event(e)
			c.logger.Info("operator", "action", e.Kind, "blade", e.Blade, "app", e.Name, "cause", e.Message)
		}
		c.act(actions)
		c.giveUpFallen()
		return nil
	})
	if err != nil {
		return err
	}
	return g.logged(ctx)
}

// missing says what a deployment lacks.
func missing(nodes, spares int) string {
	return fmt.Sprintf("no blade for %d nodes and %d spares", nodes, spares)
}

// A program that is to be stopped, because its blade drains or its deployment is made
// smaller or taken back, finishes its calls first. Its routes go to the others that
// serve the same; what only its own next incarnation can serve waits for that. The
// Registry decides who empties, and for how long it may.
//
//	EmptyNode ─▶ no routes ─▶ empty? every drainInterval ─▶ Emptied ─▶ StopNode
//
// A node that is about to leave by itself is emptied likewise, and told when it is; what
// it has begun of other calls than exactly-once ones it knows itself.
//
// If it ends before, or its patience does, it is recovered like any node: its next
// incarnation finishes what it has not. A node that has nothing to finish then, and
// does not move, is not brought back. The next incarnation of a node whose deployment is taken back
// is an heir.

// drainInterval is how often the Gatekeeper looks whether a node has finished its
// calls: longer than the digest of one takes that was on its way when the routes went.
const drainInterval = 20 * time.Millisecond

// quietLooks is how many times in a row that must have been so.
const quietLooks = 2

// draining is a node that finishes its calls.
type draining struct {
	node     *node
	wanted   bool      // by the Registry, which stops it then
	answer   func()    // to the node itself, which is about to leave; nil if that has not asked
	unrouted time.Time // since then callers do not find it
	quiet    int       // looks in a row that have found no call
	next     time.Time
}

// empty takes a node's routes away, if it has not been done, and looks from then on
// whether it has finished its calls.
func (c *controller) empty(n *node, moves bool) *draining {
	if i := slices.IndexFunc(c.draining, func(e *draining) bool { return e.node == n }); i >= 0 {
		return c.draining[i]
	}
	n.empties, n.moves = true, moves
	e := &draining{node: n, next: c.now}
	c.draining, c.timers = append(c.draining, e), true
	var phases []phase
	for _, s := range sortedServices(n.exports) {
		n.exports[s].moves = moves
		phases = append(phases, c.reroute(c.services[s])...)
	}
	c.keepExports(n)
	c.change(func(error) { e.unrouted = c.now }, phases...)
	c.logger.Info("node empties", "node", n.address, "name", n.name, "blade", n.blade.hello.Blade, "moves", moves)
	return e
}

// knownFor is how long after they were told of a node callers may call it straight: they choose
// among nodes that they asked for up to 2 s ago (rpc, bind.go), and send a call that got lost
// again within 1 s (endpoint.MaxTimeout).
const knownFor = 3500 * time.Millisecond

// stillCalled reports whether callers may not know yet that a node gets no new calls. Its blade's heartbeats say when they have found it
// last. The node
// serves calls until they do, if another node serves them after that: else they fail anyway. A
// node that moves keeps its address, so callers of exactly-once calls need not know.
func (c *controller) stillCalled(e *draining) bool {
	n, last := e.node, e.node.named
	if n.moves {
		last = n.bound
	}
	if !c.now.Before(e.unrouted.Add(knownFor)) || n.blade.heard.After(e.unrouted) && !c.now.Before(last.Add(knownFor)) {
		return false
	}
	for _, a := range sortedServices(n.exports) {
		if s := c.services[a]; len(c.fleet.Declaring(s.name)) > 0 || slices.ContainsFunc(s.exports, (*exported).serves) {
			return true
		}
	}
	return false
}

// emptied tells the Registry which nodes have finished their calls.
func (c *controller) emptied() {
	var done []*draining
	c.draining = slices.DeleteFunc(c.draining, func(e *draining) bool {
		switch {
		case e.node.gone:
			return true
		case c.now.Before(e.next) || !c.connected:
			return false
		case e.unrouted.IsZero() || c.resuming.due() || c.stillCalled(e):
			e.quiet = 0
		default:
			e.quiet++
		}
		e.next = c.now.Add(drainInterval)
		if e.quiet < quietLooks {
			return false
		}
		done = append(done, e)
		return true
	})
	for _, e := range done {
		if e.answer != nil {
			e.answer()
		}
		if e.wanted {
			c.act(c.fleet.Emptied(e.node.address, e.node.incarnation, c.now))
		}
	}
}

// goesOn reports whether a node that ends is to have a next incarnation.
func (p *population) goesOn(n *node) bool {
	if n.byHand() {
		return p.keeps(n)
	}
	// Of direct calls the node alone knows: if it has not said goodbye, its next incarnation
	// finishes them.
	if n.orderly && !p.fleet.Wants(n.address) || n.ledger == nil && p.fleet.TakenBack(n.address) {
		return false
	}
	return p.fleet.GoesOn(n.address)
}

// has reports whether a node of the service has a method.
func (s *service) has(method rpcpacket.Method) bool {
	return slices.ContainsFunc(s.exports, func(x *exported) bool { _, ok := x.methods[method]; return ok })
}

// returns reports whether a node that does not serve a service now is to: it has failed and is to come back, or it moves. A
// program that was started by hand, and has left by itself, is not waited for.
func (p *population) returns(x *exported) bool {
	if !x.node.byHand() && p.fleet.TakenBack(x.node.address) {
		return false // it is leaving for good, or an heir
	}
	_, back := p.recoveries.Awaits(x.node.address)
	return (x.away || x.moves) && (!x.node.gone || back && !x.node.hasLeft())
}

// What programs print stays on the blades that run them. The Gatekeeper asks all compute
// blades in service at once, and puts the answers in the order of their times. That is as
// good as the blades' clocks agree.

// OutputQuery says which lines are wanted.
type OutputQuery struct {
	// Program is the name of a program (APP/PROGRAM/NUMBER), or what the names of several
	// begin with, up to a slash.
	Program string
	// From is where to go on. The zero value begins with the first lines that are kept.
	From OutputPosition
	// Last, unless it is 0, asks for so many of the latest lines, wherever From is.
	Last int
}

// OutputPosition is a position in the output that the blades keep: up to where each has been read.
type OutputPosition struct {
	blades map[string]int64 // ns since 1970
	others int64            // where to begin on a blade that is not there
}

// OutputSince is the position before all lines that were printed at a time or later.
func OutputSince(t time.Time) OutputPosition {
	return OutputPosition{others: max(duration.UnixNano(t), 1) - 1}
}

// String returns what ParseOutputPosition reads.
func (p OutputPosition) String() string {
	parts := []string{strconv.FormatInt(p.others, 10)}
	for blade, at := range p.blades {
		parts = append(parts, strconv.FormatInt(at, 10)+"@"+blade)
	}
	slices.Sort(parts[1:])
	return strings.Join(parts, " ")
}

// ParseOutputPosition reads what String returns; "" is the zero value.
func ParseOutputPosition(s string) (p OutputPosition, err error) {
	for i, part := range strings.Fields(s) {
		at, blade, named := strings.Cut(part, "@")
		ns, err := strconv.ParseInt(at, 10, 64)
		if err != nil || named != (i > 0) {
			return OutputPosition{}, fmt.Errorf("%q is no position in the output of programs", s)
		}
		if !named {
			p.others = ns
			continue
		}
		if p.blades == nil {
			p.blades = map[string]int64{}
		}
		p.blades[blade] = ns
	}
	return p, nil
}

// of is up to where a blade has been read.
func (p OutputPosition) of(blade string) int64 {
	if at, ok := p.blades[blade]; ok {
		return at
	}
	return p.others
}

// OutputLine is a line that a program has printed on a blade.
type OutputLine struct {
	Blade, Program string
	Time           time.Time
	Text           string
}

// OutputPage is a part of what programs have printed.
type OutputPage struct {
	Lines []OutputLine
	Next  OutputPosition // behind them
	More  bool           // there are lines behind Next
	// Silent are blades that have not answered, with the reason.
	Silent map[string]string
	// Dropped is how many lines the blades could not keep.
	Dropped uint64
}

// Bounds of an answer.
const (
	// outputPatience is how long to wait for the answer of a blade.
	outputPatience = 3 * time.Second
	// MaxOutputLines bounds OutputQuery.Last.
	MaxOutputLines = 1000
)

// Output returns what programs have printed, on whichever blades. It waits for the blades,
// for some seconds at most; the page says which have not answered.
func (g *Gatekeeper) Output(ctx context.Context, q OutputQuery) (OutputPage, error) {
	var blades []string
	answers := make(chan outputAnswer, maxBlades)
	err := g.do(ctx, func() { blades = g.ctl.askOutput(q, answers) })
	if err != nil {
		return OutputPage{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, outputPatience)
	defer cancel()
	page := OutputPage{Silent: map[string]string{}, Next: OutputPosition{others: q.From.others, blades: map[string]int64{}}}
	for _, b := range blades {
		page.Next.blades[b] = q.From.of(b)
	}
	parts := map[string]control.OutputPart{}
	for missing := slices.Clone(blades); len(missing) > 0; {
		select {
		case a := <-answers:
			missing = slices.DeleteFunc(missing, func(b string) bool { return b == a.blade })
			if a.err != nil {
				page.Silent[a.blade] = a.err.Error()
				continue
			}
			parts[a.blade] = a.part
		case <-ctx.Done():
			for _, b := range missing {
				page.Silent[b] = "it has not answered"
			}
			missing = nil
		}
	}
	page.merge(parts, q.Last)
	return page, nil
}

// outputAnswer is what a blade has answered.
type outputAnswer struct {
	blade string
	part  control.OutputPart
	err   error
}

// askOutput asks all compute blades in service; answers has room for all of them.
func (c *controller) askOutput(q OutputQuery, answers chan<- outputAnswer) (asked []string) {
	for _, b := range c.sortedBlades() {
		if b.memory() || !b.alive() {
			continue
		}
		name := b.hello.Blade
		body := control.Output{Program: q.Program, After: q.From.of(name), Last: q.Last, Max: control.OutputPartSize}
		if q.Last > 0 {
			body.After = 0
		}
		asked = append(asked, name)
		err := b.port.ask(c.now, control.KindOutput, body, func(m control.Message) {
			a := outputAnswer{blade: name}
			if m.Status != fault.OK {
				a.err = fault.Remote(m.Status, "output", "%s", m.Body)
			} else {
				a.err = m.Decode(&a.part)
			}
			answers <- a
		})
		if err != nil {
			answers <- outputAnswer{blade: name, err: err}
		}
	}
	return asked
}

// merge puts lines in order. Where a blade has more than it has answered, what others have
// printed later waits for the next page.
func (p *OutputPage) merge(parts map[string]control.OutputPart, last int) {
	var horizon int64
	for blade, part := range parts {
		p.Dropped += part.Dropped
		for _, l := range part.Lines {
			p.Lines = append(p.Lines, OutputLine{Blade: blade, Program: l.Program, Time: time.Unix(0, l.Time), Text: l.Text})
		}
		if n := len(part.Lines); part.More && n > 0 && (horizon == 0 || part.Lines[n-1].Time < horizon) {
			horizon = part.Lines[n-1].Time
		}
	}
	slices.SortFunc(p.Lines, func(a, b OutputLine) int {
		return cmp.Or(a.Time.Compare(b.Time), cmp.Compare(a.Blade, b.Blade))
	})
	if last > 0 {
		for _, l := range p.Lines {
			p.Next.blades[l.Blade] = l.Time.UnixNano()
		}
		p.Lines = p.Lines[max(0, len(p.Lines)-last):]
		return
	}
	if horizon > 0 {
		p.More = true
		p.Lines = slices.DeleteFunc(p.Lines, func(l OutputLine) bool { return l.Time.UnixNano() > horizon })
	}
	for _, l := range p.Lines {
		p.Next.blades[l.Blade] = l.Time.UnixNano()
	}
}
