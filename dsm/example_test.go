package dsm_test

import (
	"context"
	"fmt"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Memory of the rack is allocated, written, read and freed through a node; who was
// not granted a region is denied by the switch.
func ExampleClient() {
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{}) // on a real rack: nothing
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	node, err := rpc.Join(rack.On(ctx, "c1"), rpc.WithName("owner")) // on a real rack: rpc.Join(ctx, …)
	if err != nil {
		fmt.Println(err)
		return
	}
	memory := node.Memory()

	p, err := memory.Alloc(ctx, 4096) // zero, and ours
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = memory.Write(ctx, p.Add(10), []byte("Heimdall"))
	fmt.Println(err)
	b := make([]byte, 8)
	n, err := memory.Read(ctx, p.Add(10), b)
	fmt.Println(n, string(b), err)

	stranger, err := rpc.Join(rack.On(ctx, "s1"), rpc.WithName("stranger"))
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = stranger.Memory().Read(ctx, p, b)
	fmt.Println(rpc.CodeOf(err))

	fmt.Println(memory.Free(ctx, p))
	_, err = memory.Read(ctx, p, b)
	fmt.Println(err != nil) // it is gone
	// Output:
	// <nil>
	// 8 Heimdall <nil>
	// permission denied
	// <nil>
	// true
}

// What has been cancelled may still be written, until Settle has returned.
func ExampleClient_Settle() {
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	node, err := rpc.Join(rack.On(ctx, "c1"), rpc.WithName("owner"))
	if err != nil {
		fmt.Println(err)
		return
	}
	memory := node.Memory()
	p, err := memory.Alloc(ctx, 64)
	if err != nil {
		fmt.Println(err)
		return
	}
	impatient, cancel := context.WithCancel(ctx)
	cancel()
	_, err = memory.Write(impatient, p, []byte("too late?"))
	fmt.Println(rpc.CodeOf(err))
	fmt.Println(memory.Settle(ctx, p)) // now it is known, and the region can be passed on
	// Output:
	// canceled
	// <nil>
}

// A pointer is an IPv6 address: it can be printed, sent about and read again, which
// gives nobody access to anything.
func ExampleParsePointer() {
	p, err := dsm.ParsePointer("0:0:1001::4000:40")
	fmt.Println(p.Add(8), p.Machine(), err)
	_, err = dsm.ParsePointer("fd00::1")
	fmt.Println(err != nil)
	// Output:
	// 0:0:1001::4000:48 1 <nil>
	// true
}
