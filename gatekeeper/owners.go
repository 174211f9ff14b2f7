package gatekeeper

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
)

// The names of services and of durable mains have owners: a deployment, or a program that
// somebody started by hand. Only the owner's nodes export a service, and read what is
// logged of its state or of a main's checkpoint. A service that deployments declare is
// theirs; any other name belongs to whoever uses it first, until nothing of it is left. A
// deployment may take the name of a main over from a program that was started by hand.

// claim is a name of one kind.
type claim struct {
	Kind claimKind `json:"kind"`
	Name string    `json:"name"`
}

type claimKind string

const (
	claimService claimKind = "service"
	claimMain    claimKind = "main"
)

func (k claim) String() string { return string(k.Kind) + " " + k.Name }

// id is the claim's record in the log.
func (k claim) id() log.ID { return log.NameID(k.String()) }

// owner is who a name belongs to: an app, or else a program on a blade.
type owner struct {
	App     string `json:"app,omitempty"`
	Blade   string `json:"blade,omitempty"`
	Program string `json:"program,omitempty"`
}

func (o owner) String() string {
	if o.App != "" {
		return "deployment " + o.App
	}
	return fmt.Sprintf("program %s of blade %s", o.Program, o.Blade)
}

// owners are the owners of all names, and how many names each has.
type owners struct {
	of    map[claim]owner
	names map[owner]int
}

func (o *owners) set(k claim, by owner) {
	o.remove(k)
	o.of[k] = by
	o.names[by]++
}

func (o *owners) remove(k claim) {
	by, owned := o.of[k]
	if !owned {
		return
	}
	delete(o.of, k)
	if o.names[by]--; o.names[by] == 0 {
		delete(o.names, by)
	}
}

// owner is in whose name a node acts.
func (n *node) owner() owner {
	if app, _, ok := strings.Cut(n.instance, "/"); ok {
		return owner{App: app}
	}
	return owner{Blade: n.blade.hello.Blade, Program: n.name}
}

// ownerRecord is the data of KindOwner.
type ownerRecord struct {
	Claim claim `json:"claim"`
	Owner owner `json:"owner"`
}

// claim makes sure that a name is a node's to use. It fails with PermissionDenied if the
// name belongs to another owner.
func (c *controller) claim(n *node, k claim) error {
	o := n.owner()
	if k.Kind == claimService {
		switch apps := c.fleet.Declaring(k.Name); {
		case slices.Contains(apps, o.App):
			c.expel(k, apps)
			c.own(k, o)
			return nil
		case len(apps) > 0:
			return denied(k, owner{App: apps[0]})
		case c.cfg.ShareExports && o.App == "" && c.owners.of[k].App == "":
			return nil
		}
	}
	now, owned := c.owners.of[k]
	switch {
	case owned && now == o:
		return nil
	case owned && k.Kind == claimMain && now.App == "" && o.App != "":
		// Nobody keeps a deployment's main from running by starting one of its name by hand.
	case owned && !c.unused(k):
		return denied(k, now)
	}
	if mine := c.owners.names[o]; mine >= maxClaims {
		return fault.New(fault.Overloaded, string(k.Kind), "the %s has %d names already", o, mine)
	}
	c.own(k, o)
	return nil
}

func denied(k claim, by owner) error {
	return fault.New(fault.PermissionDenied, string(k.Kind), "%s belongs to the %s", k, by)
}

// own writes down who a name belongs to.
func (c *controller) own(k claim, o owner) {
	if now, owned := c.owners.of[k]; owned && now == o {
		return
	}
	if len(c.owners.of) >= maxOwners {
		c.disownUnused()
	}
	c.owners.set(k, o)
	c.putData(log.Record{Kind: log.KindOwner, ID: k.id()}, ownerRecord{k, o})
}

// expel takes a service that deployments declare away from other nodes, which came
// before them.
func (c *controller) expel(k claim, apps []string) {
	s := c.services[rackaddr.Service(k.Name)]
	if s == nil {
		return
	}
	for _, x := range slices.Clone(s.exports) {
		if slices.Contains(apps, x.node.owner().App) {
			continue
		}
		c.log.Warn("export withdrawn", "service", s.name, "node", x.node.address, "reason", "deployment "+apps[0]+" declares it")
		c.act(c.fleet.Withdraw(x.node.address, s.name))
		c.change(nil, c.withdraw(x.node, s.address)...)
	}
}

// unused reports whether nothing is left of what a name stood for.
func (c *controller) unused(k claim) bool {
	if k.Kind == claimMain {
		return !c.table.Known(endpoint.MainID(k.Name))
	}
	a := rackaddr.Service(k.Name)
	if s := c.services[a]; s != nil && len(s.exports) > 0 {
		return false
	}
	state, _ := c.table.State(serviceHash(a))
	return len(state) == 0
}

// disownUnused forgets the owners of names of which nothing is left.
func (c *controller) disownUnused() {
	for k := range maps.Clone(c.owners.of) {
		if c.unused(k) {
			c.owners.remove(k)
			c.drop(log.KindOwner, k.id())
		}
	}
}

// restoreOwner brings an owner back.
func (c *controller) restoreOwner(r *log.Record) error {
	var o ownerRecord
	if err := data(r, &o); err != nil {
		return err
	}
	c.owners.set(o.Claim, o.Owner)
	return nil
}
