package rpc_test

import (
	"context"
	"fmt"

	"github.com/bifrost-rack/bifrost/examples/kv/gen-go/kv"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/form"
)

// A list is written as its entries come, and a page of it is read: neither needs room for
// all of it.
func ExampleElements() {
	ctx := context.Background()
	rack, err := simrack.Start(ctx, simrack.Config{}) // on a real rack: rpc.Join
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	node, _ := rack.Join(ctx, "c1", "client")

	entry := form.Struct(kv.NewEntry)
	feed := rpc.NewRef(form.List[[]*kv.Entry](entry), nil)
	writer, err := feed.Writer(ctx, node)
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := range int64(100) {
		post := &kv.Entry{Version: i, Value: make([]byte, 10<<10)}
		if err := form.Append(writer, entry, post); err != nil {
			fmt.Println(err, feed.Free(ctx)) // what is half written goes
			return
		}
	}
	if err := writer.Close(); err != nil { // now it can be passed to any service
		fmt.Println(err)
		return
	}

	posts, err := rpc.Elements(ctx, feed)
	if err != nil {
		fmt.Println(err)
		return
	}
	page, _ := posts.Slice(40, 43)
	for post, err := range page.All(ctx) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(post.Version)
	}
	_, err = posts.At(ctx, 100)
	fmt.Println(posts.Len(), err)
	fmt.Println(feed.Free(ctx))
	// Output:
	// 40
	// 41
	// 42
	// 100 index out of range: element 100 of 100
	// <nil>
}

// A key of a map, and a page of a binary, are looked at where they stand.
func ExampleEntries() {
	ctx := context.Background()
	stock := rpc.NewRef(form.Map[map[string]int64](form.String[string](), form.I64[int64]()), map[string]int64{"apples": 3, "pears": 12})
	entries, err := rpc.Entries(ctx, stock)
	if err != nil {
		fmt.Println(err)
		return
	}
	n, there, err := entries.Get(ctx, "pears")
	fmt.Println(entries.Len(), n, there, err)

	book := rpc.RefOf([]byte("In the beginning"))
	place, err := book.Place(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	page := make([]byte, 9)
	err = place.Read(ctx, 7, page)
	fmt.Printf("%s of %d bytes, %v\n", page, place.Size(), err)
	// Output:
	// 2 12 true <nil>
	// beginning of 16 bytes, <nil>
}
