// Package workload calls the arrays example's services and checks what comes
// back: the thesis's workloads (sections 7.3 and 7.5), by value or by reference.
package workload

import (
	"bytes"
	"context"
	"fmt"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// Memory is what the workloads by reference need of a node's memory.
type Memory interface {
	Alloc(ctx context.Context, size uint64) (dsm.Pointer, error)
	Read(ctx context.Context, p dsm.Pointer, b []byte) (int, error)
	Write(ctx context.Context, p dsm.Pointer, b []byte) (int, error)
	Free(ctx context.Context, p dsm.Pointer) error
}

// Client calls the two services from one node. Unlike the generated clients,
// which store their last call's metadata, it may be used concurrently.
type Client struct {
	node   *rpc.Node
	memory Memory
}

// New returns a client of node.
func New(node *rpc.Node) *Client { return &Client{node: node, memory: node.Memory()} }

func (c *Client) ping() *arrays.PingClient { return arrays.NewPingClient(c.node.Client("Ping")) }

func (c *Client) arrays() *arrays.ArraysClient {
	return arrays.NewArraysClient(c.node.Client("Arrays"))
}

// Run performs one workload by name (ping, echo, increment, add) with arrays of
// size bytes, made from seed, and fails unless the result is right.
func (c *Client) Run(ctx context.Context, name string, size int, seed byte, byReference bool) error {
	switch name {
	case "ping":
		return c.ping().Ping(ctx)
	case "echo":
		return c.Echo(ctx, pattern(size, seed), byReference)
	case "increment":
		return c.Increment(ctx, pattern(size, seed), 3, byReference)
	case "add":
		return c.Add(ctx, pattern(size, seed), pattern(size, seed+1), byReference)
	}
	return fmt.Errorf("no workload %q: there are ping, echo, increment and add", name)
}

// Names lists the workloads.
var Names = []string{"ping", "echo", "increment", "add"}

// Echo sends data and expects it back.
func (c *Client) Echo(ctx context.Context, data []byte, byReference bool) error {
	if !byReference {
		got, err := c.arrays().Echo(ctx, data)
		return verify("echo", got, data, err)
	}
	got, err := c.byRef(ctx, func(p []*bifrost.GlobalPointer) (*bifrost.GlobalPointer, error) {
		return c.arrays().EchoRef(ctx, p[0], int64(len(data)))
	}, data)
	return verify("echo", got, data, err)
}

// Increment has delta added to every byte of data.
func (c *Client) Increment(ctx context.Context, data []byte, delta int8, byReference bool) error {
	want := make([]byte, len(data))
	for i, b := range data {
		want[i] = b + byte(delta)
	}
	if !byReference {
		got, err := c.arrays().Increment(ctx, data, delta)
		return verify("increment", got, want, err)
	}
	got, err := c.byRef(ctx, func(p []*bifrost.GlobalPointer) (*bifrost.GlobalPointer, error) {
		return c.arrays().IncrementRef(ctx, p[0], int64(len(data)), delta)
	}, data)
	return verify("increment", got, want, err)
}

// Add has a and b added element by element.
func (c *Client) Add(ctx context.Context, a, b []byte, byReference bool) error {
	want := make([]byte, len(a))
	for i := range a {
		want[i] = a[i] + b[i]
	}
	if !byReference {
		got, err := c.arrays().Add(ctx, a, b)
		return verify("add", got, want, err)
	}
	got, err := c.byRef(ctx, func(p []*bifrost.GlobalPointer) (*bifrost.GlobalPointer, error) {
		return c.arrays().AddRef(ctx, p[0], int64(len(a)), p[1], int64(len(b)))
	}, a, b)
	return verify("add", got, want, err)
}

// byRef puts the arrays into memory, makes the call, reads its result (as long
// as the first array), and frees all of it.
func (c *Client) byRef(ctx context.Context, call func([]*bifrost.GlobalPointer) (*bifrost.GlobalPointer, error), args ...[]byte) (result []byte, err error) {
	var pointers []*bifrost.GlobalPointer
	var regions []dsm.Pointer
	defer func() {
		for _, p := range regions {
			if ferr := c.memory.Free(ctx, p); ferr != nil && err == nil {
				err = fmt.Errorf("free %s: %w", p, ferr)
			}
		}
	}()
	for _, data := range args {
		p, err := c.memory.Alloc(ctx, max(1, uint64(len(data))))
		if err != nil {
			return nil, err
		}
		regions = append(regions, p)
		pointers = append(pointers, rpc.GlobalPointer(p))
		if _, err := c.memory.Write(ctx, p, data); err != nil {
			return nil, err
		}
	}
	got, err := call(pointers)
	if err != nil {
		return nil, err
	}
	p, err := rpc.PointerOf(got)
	if err != nil {
		return nil, err
	}
	regions = append(regions, p)
	result = make([]byte, len(args[0]))
	_, err = c.memory.Read(ctx, p, result)
	return result, err
}

// verify fails on a call's error or on a result that is not what it must be.
func verify(what string, got, want []byte, err error) error {
	if err != nil {
		return fmt.Errorf("%s of %d bytes: %w", what, len(want), err)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s of %d bytes: wrong result", what, len(want))
	}
	return nil
}

// pattern fills an array so that a shifted, cut or stale copy is noticed.
func pattern(size int, seed byte) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*17 + seed
	}
	return b
}
