package rpc_test

import (
	"context"
	"fmt"

	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

// A node reads another one's value for longer than a call. Here both are in one program, which passes the lease on as it is; an IDL that includes bifrost.thrift has it as a
// bifrost.Lease, in any call or answer.
func ExampleRef_Share() {
	ctx := context.Background()
	rack, err := simrack.Start(ctx, simrack.Config{}) // on a real rack: rpc.Join
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	owner, _ := rack.Join(ctx, "s1", "owner")
	reader, _ := rack.Join(ctx, "c1", "reader")

	corpus := rpc.RefOf([]byte("once written, read as often as you like"))
	lease, err := corpus.Share(ctx, owner, reader.Address())
	if err != nil {
		fmt.Println(err)
		return
	}

	text := rpc.RefOf[[]byte](nil)
	if err := text.Borrow(reader, lease); err != nil {
		fmt.Println(err)
		return
	}
	b, err := text.Load(ctx)
	fmt.Printf("%s %v\n", b, err)
	fmt.Println(rpc.CodeOf(corpus.Free(ctx))) // it is shared

	fmt.Println(corpus.Unshare(ctx, lease)) // waits until nobody reads any more
	fmt.Println(corpus.Free(ctx))
	late := rpc.RefOf[[]byte](nil)
	if err := late.Borrow(reader, lease); err != nil {
		fmt.Println(err)
		return
	}
	_, err = late.Load(ctx)
	fmt.Println(rpc.CodeOf(err))
	// Output:
	// once written, read as often as you like <nil>
	// permission denied
	// <nil>
	// <nil>
	// permission denied
}
