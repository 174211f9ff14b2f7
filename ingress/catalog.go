package ingress

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/bifrost-rack/bifrost/ingress/thriftjson"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/gen"
)

// offer is what the rack knows of a service, and what its IDL says.
type offer struct {
	name    string
	methods []*gen.Method // in the order of the IDL
	// problem says why its methods are not known: "" if they are.
	problem string
}

// method returns a method that can be called; else why there is none.
func (o *offer) method(name string) (*gen.Method, *problem) {
	if o.problem != "" {
		return nil, notCallable(fmt.Sprintf("service %s: %s", o.name, o.problem))
	}
	i := slices.IndexFunc(o.methods, func(m *gen.Method) bool { return m.Name == name })
	if i < 0 {
		return nil, noMethod(fmt.Sprintf("service %s has no method %q", o.name, name))
	}
	if err := thriftjson.Callable(o.methods[i]); err != nil {
		return nil, notCallable(fmt.Sprintf("method %s.%s: %v", o.name, name, err))
	}
	return o.methods[i], nil
}

const (
	// fresh is for how long what the Gatekeeper has said is not asked again.
	fresh = time.Second
	// patience is how long the Gatekeeper may take where an older word will do.
	patience = 500 * time.Millisecond
	// firstPatience is how long it may take where there is none.
	firstPatience = 5 * time.Second
)

// catalog knows the services of the rack. It asks the Gatekeeper, and goes by its last word while the Gatekeeper is away.
type catalog struct {
	node   *rpc.Node
	asking singleflight.Group

	mu     sync.Mutex
	names  []string
	listed time.Time
	// By the services' names:
	offers map[string]*offer
	asked  map[string]time.Time
	parsed map[string]parsedIDL
}

type parsedIDL struct {
	text     string
	services []*gen.Service
	err      error
}

func newCatalog(node *rpc.Node) *catalog {
	return &catalog{node: node, offers: map[string]*offer{}, asked: map[string]time.Time{}, parsed: map[string]parsedIDL{}}
}

// list returns the names of the services that can be called from outside.
func (c *catalog) list(ctx context.Context) ([]string, error) {
	c.mu.Lock()
	names, age := c.names, time.Since(c.listed)
	known := !c.listed.IsZero()
	c.mu.Unlock()
	if known && age < fresh {
		return names, nil
	}
	_, err, _ := c.asking.Do("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait(known))
		defer cancel()
		all, err := c.node.Services(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err == nil || known {
			c.listed = time.Now()
		}
		if err == nil {
			c.names = slices.DeleteFunc(all, func(name string) bool { return name == callerService || name == keysService })
			c.prune()
		}
		return nil, err
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil && !known {
		return nil, err
	}
	return c.names, nil
}

// prune forgets services that are gone. The caller holds the lock.
func (c *catalog) prune() {
	gone := func(name string) bool { _, ok := slices.BinarySearch(c.names, name); return !ok }
	maps.DeleteFunc(c.offers, func(name string, _ *offer) bool { return gone(name) })
	maps.DeleteFunc(c.asked, func(name string, _ time.Time) bool { return gone(name) })
	maps.DeleteFunc(c.parsed, func(name string, _ parsedIDL) bool { return gone(name) })
}

func wait(known bool) time.Duration {
	if known {
		return patience
	}
	return firstPatience
}

// find returns a service; nil if the rack has none of this name.
func (c *catalog) find(ctx context.Context, name string) (*offer, error) {
	names, err := c.list(ctx)
	if err != nil {
		return nil, err
	}
	if _, ok := slices.BinarySearch(names, name); !ok {
		return nil, nil
	}
	c.mu.Lock()
	o, age := c.offers[name], time.Since(c.asked[name])
	c.mu.Unlock()
	if o != nil && age < fresh {
		return o, nil
	}
	_, err, _ = c.asking.Do(name, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait(o != nil))
		defer cancel()
		info, err := c.node.Service(ctx, name)
		if err != nil && o == nil {
			return nil, err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.asked[name] = time.Now()
		if err == nil && len(info.Methods) > 0 {
			c.offers[name] = c.read(name, &info)
		} else if o == nil {
			delete(c.asked, name)
		}
		return nil, nil
	})
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offers[name], nil
}

// read makes an offer of what the Gatekeeper says. The caller holds the lock.
func (c *catalog) read(name string, info *rpc.ServiceInfo) *offer {
	p := c.parsed[name]
	if p.text != info.IDL || p.services == nil && p.err == nil {
		p = parsedIDL{text: info.IDL}
		p.services, p.err = gen.Describe(info.IDL)
		c.parsed[name] = p
	}
	o := &offer{name: name}
	switch s := pick(p.services, name, info.Methods); {
	case info.IDL == "":
		o.problem = "its program does not publish its IDL (rpc.WithIDL)"
	case p.err != nil:
		o.problem = "its published IDL cannot be read: " + p.err.Error()
	case s == nil:
		o.problem = "its published IDL defines no such service"
	default:
		for _, m := range s.Methods {
			if slices.Contains(info.Methods, m.Name) {
				o.methods = append(o.methods, m)
			}
		}
	}
	return o
}

// pick finds the service of an IDL text that is exported under a name: the one of that name, or else the only one that has all methods.
func pick(services []*gen.Service, name string, methods []string) (found *gen.Service) {
	for _, s := range services {
		if s.Name == name {
			return s
		}
	}
	for _, s := range services {
		all := !slices.ContainsFunc(methods, func(m string) bool {
			return !slices.ContainsFunc(s.Methods, func(o *gen.Method) bool { return o.Name == m || o.Name+".ref" == m })
		})
		if all && found != nil {
			return nil
		}
		if all {
			found = s
		}
	}
	return found
}

func noMethod(detail string) *problem {
	p := refusal(http.StatusNotFound, "unknown", detail)
	p.NeverBegan = true
	return p
}

func notCallable(detail string) *problem {
	p := refusal(http.StatusNotImplemented, "not-callable", detail)
	p.NeverBegan = true
	return p
}
