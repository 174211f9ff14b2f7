package rpc

import (
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/rpc/packet"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// policy is what becomes of a call that is made now: what an operator or a deployment
// has said of the method goes before what this side knows.
//
// A re-run has to make its calls as they were made before, else one that was logged
// might run once more as one that is not. So an execution that goes by another's word
// journals that, as an operation in front of the call; and one that is run again
// goes by its journal, and where that says nothing by this side's word alone. (A
// durable main, which cannot know whether it ran before, does so until its first
// checkpoint.)
func (c *client) policy(b *strand, name string) (Policy, error) {
	own := c.config.policy(name)
	if !b.journalled() {
		if p, said := explicit(c.node.session.Policies(), c.service, name); said {
			return p, nil
		}
		return own, nil
	}
	known := b.e.journal.knows(b.ahead(), trailer.Policy)
	p, said := explicit(c.node.session.Policies(), c.service, name)
	if !known && (b.e.mayBeAgain() || !said || p == own) {
		return own, nil
	}
	o, err := b.begin("call "+c.service+"."+name, trailer.Policy)
	if err != nil {
		return own, err
	}
	defer o.end()
	if o.known == nil {
		o.record(trailer.Policy, []byte{byte(p)})
		return p, nil
	}
	if d := o.known.Data; len(d) == 1 && Policy(d[0]) <= PolicyTainted {
		return Policy(d[0]), nil
	}
	return own, o.diverged("the journal names no policy")
}

// explicit is what a set says of a method; of one's form by reference what it says of
// the method.
func explicit(set *join.Policies, service, name string) (Policy, bool) {
	return set.Of(service, packet.PlainMethod(name))
}

// mayBeAgain reports whether the execution may have run before.
func (e *execution) mayBeAgain() bool {
	if e.main != nil {
		return !e.main.begun.Load()
	}
	return e.resumed || replays(&e.call.Header)
}

// ahead is the place of the next operation.
func (b *strand) ahead() place {
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	return place{b.number, b.index + 1}
}

// knows reports whether a former attempt has made an entry of a type at a place.
func (j *journal) knows(at place, t trailer.Type) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.past[at].Type == t
}
