package peer

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/bench/idl/gen-go/hop"
	"github.com/bifrost-rack/bifrost/bench/idl/gen-go/marked"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Bifröst in its ways of making a call; the runtime is the same in all of them,
// and so is the protection in the switch.
var (
	bifrostPeer = bifrostKind{name: "bifrost", reference: true, marked: true, policy: rpc.PolicyNone}.peer("Bifröst",
		"arguments and results by reference (rpc.Ref, marked in the IDL), policy none; short ones travel inside the call")
	// bifrostRegions is a program that makes a region for each argument and result by hand,
	// however short it is.
	bifrostRegions = bifrostKind{name: "bifrost-regions", reference: true, policy: rpc.PolicyNone}.peer("Bifröst, by regions",
		"global pointers in the IDL: each argument and result has a region, policy none")
	// bifrostRegionsExact is the same program with exactly-once calls.
	bifrostRegionsExact = bifrostKind{name: "bifrost-regions-exact", reference: true, policy: rpc.PolicyRecover}.peer("Bifröst, by regions, exactly once",
		"global pointers in the IDL: each argument and result has a region, policy recover")
	// The same two while the switch judges no rights (bench/unjudged.go).
	bifrostUnjudged = bifrostKind{name: "bifrost-unjudged", reference: true, policy: rpc.PolicyNone}.peer("no rights, by regions",
		"as Bifröst, by regions, while the switch lets every call and access pass without a look at rights")
	bifrostUnjudgedExact = bifrostKind{name: "bifrost-unjudged-exact", reference: true, policy: rpc.PolicyRecover}.peer("no rights, by regions, exactly once",
		"as Bifröst, by regions, exactly once, while the switch lets every call and access pass without a look at rights")
	// bifrostKept is a program that calls again and again: it keeps the regions of
	// its arguments, and does not wait until a result is freed.
	bifrostKept = bifrostKind{name: "bifrost-kept", reference: true, kept: true, policy: rpc.PolicyNone}.peer("Bifröst, regions kept",
		"by reference, policy none; the arguments' regions stay for the next call, results are freed in the background")
	// bifrostExact is what a program gets that asks for exactly-once calls.
	bifrostExact = bifrostKind{name: "bifrost-exact", reference: true, marked: true, policy: rpc.PolicyRecover}.peer("Bifröst, exactly once", "by reference, policy recover: the callee's ledger has the outcome before the answer leaves")
	// memorySingle and memoryMirrored read and write memory of a machine with one blade, and
	// with two of which each holds a copy: machines 2 and 1 of their experiment's rack.
	memorySingle   = bifrostKind{name: "memory-single", reference: true, policy: rpc.PolicyNone, machine: 2}.peer("one copy", "a region on a memory blade that is alone")
	memoryMirrored = bifrostKind{name: "memory-mirrored", reference: true, policy: rpc.PolicyNone, machine: 1}.peer("two copies", "a region of which two memory blades hold a copy each: a write is done when both have answered")
	// thriftUDPExact is thriftUDP with exactly-once calls.
	thriftUDPExact = bifrostKind{name: "thrift-udp-exact", policy: rpc.PolicyRecover}.peer("Thrift over our UDP, exactly once", "by value, policy recover: the callee's ledger has each call's outcome before the answer leaves")
	// thriftUDP is the thesis's "Thrift UDP implementation, but no Bifröst
	// management": nothing of it is in memory.
	thriftUDP = bifrostKind{name: "thrift-udp", policy: rpc.PolicyNone}.peer("Thrift over our UDP", "Bifröst's UDP runtime, arguments and results by value, policy none")
)

type bifrostKind struct {
	name      string
	reference bool
	marked    bool   // arrays are marked in the IDL
	patterns  string // how values travel in the ways to use them; "" if it has none
	kept      bool
	policy    rpc.Policy
	// machine is where memory that is read and written must be; 0 is anywhere.
	machine uint8
}

func (k bifrostKind) peer(title, setup string) Peer {
	return Peer{Name: k.name, Title: title, Managed: true, Setup: setup, Serve: k.serve, Dial: k.dial}
}

// service names a service of this kind, so that kinds do not serve each other.
func (k bifrostKind) service(name string) string { return "bench." + k.name + "." + name }

// joinTime bounds how long a program waits for its node.
const joinTime = 15 * time.Second

func (k bifrostKind) join(ctx context.Context, role string) (*rpc.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTime)
	defer cancel()
	return rpc.Join(ctx, rpc.WithName("bench-"+k.name+"-"+role))
}

// bifrostNode closes a node in an orderly way.
type bifrostNode struct {
	*rpc.Node
	hops []*hopHandler
}

// leaveTime bounds how long a node may take to leave the rack.
const leaveTime = 5 * time.Second

// Close ends the node.
func (n bifrostNode) Close() error {
	for _, h := range n.hops {
		h.close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
	defer cancel()
	return n.Node.Close(ctx)
}

func (k bifrostKind) serve(ctx context.Context, s Site) (Server, error) {
	node, err := k.join(ctx, "server")
	if err != nil {
		return nil, err
	}
	n := bifrostNode{Node: node}
	if err := k.export(ctx, &n, s); err != nil {
		_ = n.Close()
		return nil, err
	}
	return n, nil
}

func (k bifrostKind) export(ctx context.Context, n *bifrostNode, s Site) error {
	services := map[string]thrift.TProcessor{}
	switch {
	case k.patterns != "":
		if s.Index == 0 {
			services[postsName] = marked.NewPostsRefProcessor(postsHandler{})
		}
	case s.Nodes > 0:
		services[oneOf("Arrays", s.Index)] = processor(refHandler{})
	case s.Index == 0:
		services["Arrays"] = processor(refHandler{})
		services[markedName] = marked.NewMarkedRefProcessor(markedHandler{})
	}
	for _, number := range s.own() {
		if k.patterns != "" {
			services[patternsOf(number)] = k.servePatterns(n.Node, number)
			continue
		}
		h := newHop(number, k.dialer(n.Node))
		n.hops = append(n.hops, h)
		services[hopName(number)] = hop.NewHopProcessor(h)
	}
	for name, p := range services {
		if err := n.Export(ctx, k.service(name), p); err != nil {
			return err
		}
	}
	return nil
}

// dialer returns what makes clients of a node. Ping is served with the arrays.
func (k bifrostKind) dialer(node *rpc.Node) dialer {
	return func(_ context.Context, service string, _ int) (thrift.TClient, func(), error) {
		if service == "Ping" {
			service = "Arrays"
		}
		return node.Client(k.service(service), rpc.WithPolicy(k.policy)), func() {}, nil
	}
}

func (k bifrostKind) dial(ctx context.Context, s Site) (Client, error) {
	node, err := k.join(ctx, "client")
	if err != nil {
		return nil, err
	}
	return bifrostClient{bifrostNode{Node: node}, k, s.Nodes, new(atomic.Int64)}, nil
}

// oneOf is the name under which one of several nodes serves.
func oneOf(service string, node int) string { return fmt.Sprintf("%s%d", service, node) }

// bifrostClient is a node that calls.
type bifrostClient struct {
	bifrostNode
	kind     bifrostKind
	nodes    int           // Site.Nodes
	prepared *atomic.Int64 // operations
}

// Prepare implements Client.
func (c bifrostClient) Prepare(ctx context.Context, w Work) (Operation, func(), error) {
	if w.Op == Ping && c.nodes > 0 {
		service := oneOf("Arrays", int(c.prepared.Add(1))%c.nodes)
		return byValue(ctx, func(ctx context.Context, _ string, stage int) (thrift.TClient, func(), error) {
			return c.kind.dialer(c.Node)(ctx, service, stage)
		}, w)
	}
	if w.Op == Ping || !c.kind.reference {
		return byValue(ctx, c.kind.dialer(c.Node), w)
	}
	return c.byReference(ctx, w)
}

// Resent is how many messages the node has sent again so far.
func (c bifrostClient) Resent() uint64 { return c.Stats().Resent }
