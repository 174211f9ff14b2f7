package daemon

import (
	"context"
	"fmt"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// What the blade has is shared by the users whose programs run there (package share): nodes, questions to the Gatekeeper that wait for their
// answers, and lookups of servers. A program that the daemon has started takes a node as long as there is one, since the Gatekeeper
// has placed it; it counts as its user's.

// takeNode takes a node of the blade for a program, which gives it back with giveNode unless it becomes one (forget). The caller
// holds c.mu.
func (c *Compute) takeNode(p join.Program) error {
	if uint64(c.cfg.Nodes) <= c.nodesOf.Used() { //nolint:gosec // positive
		return fault.New(fault.Overloaded, "join", "blade %s runs %d nodes, its maximum: end a program there, or raise bifrost compute --nodes", c.cfg.Name, c.cfg.Nodes)
	}
	if err := c.mayJoin(p); err != nil {
		return err
	}
	if p.Instance != "" {
		c.nodesOf.Force(p.UID, 1)
	} else if !c.nodesOf.Take(p.UID, 1) {
		return fault.New(fault.Overloaded, "join", "user %d runs %d nodes on blade %s, its share of %d: end a program of that user, or raise bifrost compute --nodes",
			p.UID, c.nodesOf.Held(p.UID), c.cfg.Name, c.cfg.Nodes)
	}
	return nil
}

func (c *Compute) giveNode(uid uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.nodesOf.Release(uid, 1)
}

// ask asks the Gatekeeper for the node's user.
func (n *node) ask(ctx context.Context, kind control.Kind, request, reply any) error {
	return n.daemon.askFor(ctx, n.program.UID, kind, request, reply)
}

// askFor asks the Gatekeeper what a program of a user wants to know or tell. It fails as Overloaded when the user has
// its share of questions under way.
func (c *Compute) askFor(ctx context.Context, uid uint32, kind control.Kind, request, reply any) error {
	release, err := c.take(c.questionsOf, uid, kind.String(), "questions to the Gatekeeper")
	if err != nil {
		return err
	}
	defer release()
	return c.reg.ask.AskInTurn(ctx, kind, request, reply)
}

// take takes one of what the users of the blade share, until release is called. It fails as Overloaded when the user has its share;
// the error says what there are too many of.
func (c *Compute) take(of *share.Pool[uint32], uid uint32, op, what string) (release func(), err error) {
	c.mu.Lock()
	ok, held := of.Take(uid, 1), of.Held(uid)
	c.mu.Unlock()
	if !ok {
		return nil, fault.New(fault.Overloaded, op, "programs of user %d on blade %s have %d %s under way, its share of %d", uid, c.cfg.Name, held, what, of.Total())
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		of.Release(uid, 1)
	}, nil
}

// Refused tells how often users of the blade were refused nodes, questions and lookups, by Unix user. Users beyond share.MaxOwners
// are counted together.
func (c *Compute) Refused(each func(user, what string, n uint64)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for what, pool := range map[string]*share.Pool[uint32]{"nodes": c.nodesOf, "questions": c.questionsOf, "lookups": c.lookupsOf} {
		if others := pool.Refusals().Each(func(uid uint32, n uint64) { each(fmt.Sprint(uid), what, n) }); others > 0 {
			each("other", what, others)
		}
	}
}
