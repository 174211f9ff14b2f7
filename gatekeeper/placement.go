package gatekeeper

import (
	"math"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// Who runs where is decided by the resources.Registry. The controller tells it
// what happens to blades and nodes, and carries out what it wants done. Three
// things are the controller's own, since they follow from its rules: which blades
// are silent, the numbers of nodes, and the routes of services.
//
//	hello, heartbeat, join, export, leave, failed ──▶ Registry ──▶ act: start and stop programs,
//	deploy, undeploy, drain, fail, return, tick ────▶            end nodes, fail blades, tell people

// fleetConfig is how the registry works here.
func fleetConfig() resources.Config {
	cfg := resources.DefaultConfig()
	cfg.Heartbeat, cfg.Missed = time.Hour, 1<<20 // the controller judges silence
	cfg.MaxHops = math.MaxUint16
	cfg.Policy = rpc.PolicyRecover // rpc.DefaultPolicy
	return cfg
}

// newRegistry returns the registry of an empty rack.
func newRegistry() *resources.Registry {
	r, err := resources.New(fleetConfig())
	if err != nil {
		panic(err) // constants
	}
	return r
}

// place registers a blade that says hello.
func (c *controller) place(h *control.Hello, port uint16) error {
	mac, err := frame.ParseMAC(h.MAC)
	if err != nil {
		return fault.New(fault.BadRequest, "hello", "%v", err)
	}
	capacity := h.Capacity
	if h.Kind == control.Compute && capacity == 0 {
		capacity = maxNodes // it does not say
	}
	_, actions, err := c.fleet.Hello(resources.Hello{
		Blade: h.Blade, Kind: resources.Kind(h.Kind), MAC: mac, Capacity: capacity, Spec: h.Spec, Boot: h.Boot,
	}, resources.Port(port), c.now)
	c.act(actions)
	return err
}

// placed makes sure that the registry knows a blade and its nodes: those that a
// log has brought back have not said hello or joined here.
func (c *controller) placed(b *blade) {
	if b.port == nil || c.fleet.Knows(b.hello.Blade) {
		return
	}
	if err := c.place(&b.hello, b.port.num); err != nil {
		c.log.Error("a blade cannot be used", "blade", b.hello.Blade, "error", err)
		return
	}
	for _, n := range b.sortedNodes() {
		c.adopt(n)
	}
}

func (c *controller) adopt(n *node) {
	known := resources.Node{Address: n.address, Incarnation: n.incarnation, Name: n.name, Blade: n.blade.hello.Blade}
	if err := c.fleet.Adopt(known, c.now); err != nil {
		c.log.Error("a node cannot be taken over", "node", n.address, "error", err)
	}
}

// placeNode registers a node that joins, and refuses one that has no place on its
// blade. It gets the next number. The actions are for when it is a node.
func (c *controller) placeNode(b *blade, j *control.Join) (resources.Node, []resources.Action, error) {
	c.placed(b)
	name := j.Instance
	if name == "" { // names with a slash are for programs that were deployed
		name = strings.ReplaceAll(j.Name, "/", "_")
	}
	c.fleet.Numbered(c.lastNode)
	return c.fleet.Join(b.hello.Blade, name, j.Token, c.now)
}

// placeService registers what a node exports.
func (c *controller) placeService(n *node, e *control.Export) error {
	c.placed(n.blade)
	if !c.fleet.HasNode(n.address) {
		c.adopt(n)
	}
	methods := make([]resources.Method, len(e.Methods))
	for i, m := range e.Methods {
		methods[i] = resources.Method{Name: m.Name, Oneway: m.Oneway, Policy: m.Policy}
	}
	actions, err := c.fleet.Export(n.address, n.incarnation, e.Service, e.Stateful, methods, c.now)
	c.act(actions)
	return err
}

// reported takes what a blade's heartbeat says about its use and its programs.
func (c *controller) reported(b *blade, h *control.Heartbeat) {
	c.placed(b)
	_, actions := c.fleet.Heartbeat(h.Blade, h.Boot, h.Used, nil, c.now)
	c.act(actions)
	if !b.memory() {
		c.act(c.fleet.Programs(h.Blade, h.Programs, c.now))
	}
}

// displaced says that a node is about to go.
func (c *controller) displaced(n *node, why string) {
	c.act(c.fleet.Leave(n.address, n.incarnation, !n.orderly, why, c.now))
}

// act carries out what the registry wants done. Rules follow from the controller's
// own state, so of the actions that are about them nothing is left to do.
func (c *controller) act(actions []resources.Action) {
	for _, a := range actions {
		switch a := a.(type) {
		case resources.BladeDown:
			switch b := c.blades[a.Blade.Name]; {
			case b == nil || !b.alive():
			case b.two():
				c.giveUpCopy(b, b.two, func() { c.failed(b, a.Blade.Cause) })
			default:
				c.failed(b, a.Blade.Cause)
			}
		case resources.EndNode:
			if n := c.nodes[a.Node.Address]; n != nil && n.incarnation == a.Node.Incarnation {
				c.removeNode(n, a.Node.Cause)
			}
		case resources.StartNode:
			c.startProgram(a)
		case resources.EmptyNode:
			c.emptyNode(a)
		case resources.StopNode:
			c.stopProgram(a)
		case resources.Short:
			c.short(a)
		case resources.Drained:
			c.event(Event{Kind: BladeDrained, Blade: a.Blade})
			c.log.Info("blade drained", "blade", a.Blade)
		}
	}
	c.timers = true // the registry's deadline may have changed without any
}

// startProgram makes a blade's daemon run a program.
func (c *controller) startProgram(a resources.StartNode) {
	failed := func(err error) {
		c.event(Event{Kind: ProgramFailed, Blade: a.Blade, Name: a.Instance, Message: err.Error()})
		c.log.Warn("program does not start", "program", a.Instance, "blade", a.Blade, "error", err)
		c.act(c.fleet.StartFailed(a.Instance, a.Blade, c.now))
	}
	b := c.blades[a.Blade]
	if b == nil || !b.alive() {
		failed(fault.New(fault.Unavailable, "start "+a.Instance, "blade %s is gone", a.Blade))
		return
	}
	start := control.Start{
		Name: a.Instance, Args: a.Args, Env: a.Env, Address: a.Address, Incarnation: a.Incarnation, Services: a.Services,
		AnswerMS: a.Liveness.Answer.Milliseconds(), ProgressMS: a.Liveness.Progress.Milliseconds(), ReadyMS: a.Liveness.Ready.Milliseconds(),
	}
	err := c.ask(b.port, control.KindStart, start, func(m control.Message) {
		if m.Status != fault.OK {
			failed(fault.Remote(m.Status, "start "+a.Instance, "%s", m.Body))
			return
		}
		c.fleet.Started(a.Instance, a.Blade)
		c.event(Event{Kind: ProgramStarted, Blade: a.Blade, Name: a.Instance})
		c.log.Info("program started", "program", a.Instance, "blade", a.Blade)
	})
	if err != nil {
		failed(err)
	}
}

// stopProgram makes a blade's daemon end a program. One that is not to run any
// more has no place, whatever becomes of this: it cannot join again.
func (c *controller) stopProgram(a resources.StopNode) {
	b := c.blades[a.Blade]
	if b == nil || !b.alive() {
		return // its nodes have ended with it
	}
	c.command(b, control.KindStop, control.Stop{Name: a.Instance, GraceMS: int(a.Grace.Milliseconds())}, nil)
}

// short tells people that a deployment lacks blades, or no longer does.
func (c *controller) short(a resources.Short) {
	e := Event{Kind: AppShort, Name: a.App + "/" + a.Program, Message: "no blade is missing any more"}
	if a.Nodes+a.Spares > 0 {
		e.Message = missing(a.Nodes, a.Spares)
	}
	c.event(e)
	c.log.Info("deployment", "program", e.Name, "state", e.Message)
}
