package rpc_test

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	byvalue "github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/examples/pipeline/gen-go/pipeline"
	"github.com/bifrost-rack/bifrost/rpc"
)

// withRack runs f with a node that serves and one that calls. On a real rack that is rpc.Join, in two programs.
func withRack(f func(ctx context.Context, server, client *rpc.Node) error) error {
	ctx := context.Background()
	rack, err := bifrosttest.Start(ctx, bifrosttest.Config{})
	if err != nil {
		return err
	}
	defer rack.Close()
	server, err := rpc.Join(rack.On(ctx, "s1"), rpc.WithName("server"))
	if err != nil {
		return err
	}
	client, err := rpc.Join(rack.On(ctx, "c1"), rpc.WithName("client"))
	if err != nil {
		return err
	}
	return errors.Join(f(ctx, server, client), client.Close(ctx), server.Close(ctx))
}

// Both sides log, with the same interceptor. It is around a client of `bifrost gen` and the service that it calls by reference.
func ExampleInterceptor_logging() {
	log := func(ctx context.Context, c *rpc.Call, next func(context.Context) error) error {
		side := "serves"
		if c.Outgoing {
			side = "calls"
		}
		err := next(ctx)
		fmt.Printf("%s %s.%s: %v\n", side, c.Service, c.Method, rpc.CodeOf(err)) // or log/slog, with the time it took
		return err
	}
	err := withRack(func(ctx context.Context, server, client *rpc.Node) error {
		if err := pipeline.ExportStage(ctx, server, "Sorter", sorter{}, rpc.Interceptor(log)); err != nil {
			return err
		}
		stage := pipeline.OpenStage(client, "Sorter", rpc.Interceptor(log))
		sorted, err := pipeline.StageValues(stage).Run(ctx, []byte("b c a"))
		fmt.Printf("%s\n", sorted)
		return err
	})
	fmt.Println(err)
	// Output:
	// serves Sorter.run: ok
	// calls Sorter.run: ok
	// a b c
	// <nil>
}

// Clients show a token, which services ask for. One interceptor does both.
func ExampleInterceptor_auth() {
	auth := func(token string) rpc.Interceptor {
		return func(ctx context.Context, c *rpc.Call, next func(context.Context) error) error {
			if c.Outgoing {
				return next(rpc.WithHeader(ctx, "authorization", "Bearer "+token))
			}
			got, _ := rpc.Header(ctx, "authorization")
			if subtle.ConstantTimeCompare([]byte(got), []byte("Bearer "+token)) != 1 {
				return rpc.Errorf(rpc.PermissionDenied, "a token is needed")
			}
			return next(ctx) // rpc.CallerOf tells which program calls: that needs no token
		}
	}
	err := withRack(func(ctx context.Context, server, client *rpc.Node) error {
		err := server.Export(ctx, "Ping", arrays.NewPingProcessor(byvalue.Ping{}), auth("secret"))
		if err != nil {
			return err
		}
		for _, token := range []string{"secret", "guessed"} {
			err := arrays.NewPingClient(client.Client("Ping", auth(token))).Ping(ctx)
			fmt.Println(err)
		}
		return nil
	})
	fmt.Println(err)
	// Output:
	// <nil>
	// call Ping.ping: permission denied: a token is needed (remote)
	// <nil>
}

// Arguments that make no sense do not leave the client, and do not reach the handler if they come from elsewhere.
func ExampleInterceptor_validation() {
	validate := func(ctx context.Context, c *rpc.Call, next func(context.Context) error) error {
		if c.Method == "add" {
			var args arrays.ArraysAddArgs
			if err := c.Arguments(ctx, &args); err != nil {
				return err
			}
			if len(args.A) != len(args.B) {
				return rpc.Errorf(rpc.BadRequest, "arrays of %d and %d bytes", len(args.A), len(args.B))
			}
		}
		return next(ctx)
	}
	err := withRack(func(ctx context.Context, server, client *rpc.Node) error {
		err := server.Export(ctx, "Arrays", arrays.NewArraysProcessor(byvalue.Arrays{}), rpc.Interceptor(validate))
		if err != nil {
			return err
		}
		careful := arrays.NewArraysClient(client.Client("Arrays", rpc.Interceptor(validate)))
		fmt.Println(careful.Add(ctx, []byte{1, 2}, []byte{3, 4}))
		_, err = careful.Add(ctx, []byte{1, 2}, []byte{3})
		fmt.Println(err)
		_, err = arrays.NewArraysClient(client.Client("Arrays")).Add(ctx, []byte{1, 2}, []byte{3})
		fmt.Println(err)
		return nil
	})
	fmt.Println(err)
	// Output:
	// [4 6] <nil>
	// bad request: arrays of 2 and 1 bytes
	// call Arrays.add: bad request: arrays of 2 and 1 bytes (remote)
	// <nil>
}
