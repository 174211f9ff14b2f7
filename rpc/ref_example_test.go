package rpc_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/bifrost-rack/bifrost/examples/pipeline/gen-go/pipeline"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

// sorter implements the service Stage of examples/pipeline, whose IDL says
//
//	binary run(1: binary text (bifrost.ref)) throws (1: BadText bad) (bifrost.ref)
type sorter struct{}

func (sorter) Run(ctx context.Context, text *rpc.Ref[[]byte]) (*rpc.Ref[[]byte], error) {
	b, err := text.Load(ctx) // reads the caller's memory, which is lent until this returns
	if err != nil {
		return nil, err
	}
	words := bytes.Fields(b)
	slices.SortFunc(words, bytes.Compare)
	return rpc.RefOf(bytes.Join(words, []byte(" "))), nil // memory of its own, handed to the caller
}

// A service and a client with the stubs that "bifrost gen" has made.
func ExampleRef() {
	ctx := context.Background()
	rack, err := simrack.Start(ctx, simrack.Config{}) // on a real rack: rpc.Join
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rack.Close()
	server, _ := rack.Join(ctx, "s1", "server")
	client, _ := rack.Join(ctx, "c1", "client")
	if err := pipeline.ExportStage(ctx, server, "Sorter", sorter{}); err != nil {
		fmt.Println(err)
		return
	}

	stage := pipeline.OpenStage(client, "Sorter")
	text := rpc.RefOf([]byte("reads many once written"))
	for range 2 { // the text is written once, whoever is called how often
		result, err := stage.Run(ctx, text)
		if err != nil {
			fmt.Println(err)
			return
		}
		sorted, err := result.Take(ctx) // reads the result and gives its memory back
		fmt.Printf("%s %v\n", sorted, err)
	}
	fmt.Println(text.Free(ctx))
	_, err = stage.Run(ctx, text)
	fmt.Println(err)

	// The same as plain values, which travel by reference none the less.
	sorted, err := pipeline.StageValues(stage).Run(ctx, []byte("b c a"))
	fmt.Printf("%s %v\n", sorted, err)
	// Output:
	// many once reads written <nil>
	// many once reads written <nil>
	// <nil>
	// argument text: bad request: the reference has ended: its call is over, or it was freed or handed over
	// a b c <nil>
}
