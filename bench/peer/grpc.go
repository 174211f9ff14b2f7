package peer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/bifrost-rack/bifrost/bench/idl/benchpb"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
)

// grpcPeer is gRPC-Go: one connection for all callers, as it multiplexes them;
// windows that hold the largest message, so that none waits for credit; stream
// workers instead of a goroutine for every call.
var grpcPeer = Peer{
	Name: "grpc", Title: "gRPC-Go", Serve: serveGRPC, Dial: dialGRPC,
	Setup: "gRPC-Go without TLS, one connection, 16 MiB windows, 64 KiB read and write buffers, stream workers",
}

const (
	grpcWindow = 2 * MaxSize
	grpcBuffer = 64 << 10
)

type grpcServer struct {
	servers []*grpc.Server
	hops    []*grpcStage
	running sync.WaitGroup
}

func serveGRPC(_ context.Context, s Site) (Server, error) {
	g := &grpcServer{}
	if s.Index == 0 {
		if err := g.add(s.main(), &grpcStage{site: s}); err != nil {
			return nil, err
		}
	}
	for _, n := range s.own() {
		if err := g.add(s.hop(n), &grpcStage{site: s, number: n}); err != nil {
			return nil, errors.Join(err, g.Close())
		}
	}
	return g, nil
}

func (g *grpcServer) add(at netip.AddrPort, stage *grpcStage) error {
	l, err := net.Listen("tcp", at.String())
	if err != nil {
		return err
	}
	server := grpc.NewServer(
		grpc.InitialWindowSize(grpcWindow), grpc.InitialConnWindowSize(grpcWindow), grpc.MaxRecvMsgSize(4*MaxSize),
		grpc.ReadBufferSize(grpcBuffer), grpc.WriteBufferSize(grpcBuffer), grpc.NumStreamWorkers(uint32(runtime.GOMAXPROCS(0))))
	benchpb.RegisterBenchServer(server, stage)
	g.servers, g.hops = append(g.servers, server), append(g.hops, stage)
	g.running.Go(func() { _ = server.Serve(l) })
	return nil
}

// Close ends the servers.
func (g *grpcServer) Close() error {
	for _, s := range g.servers {
		s.Stop()
	}
	g.running.Wait()
	var err error
	for _, h := range g.hops {
		err = errors.Join(err, h.close())
	}
	return err
}

// grpcStage implements the services; a stage of a chain has a number.
type grpcStage struct {
	benchpb.UnimplementedBenchServer
	site   Site
	number int
	arrays service.Arrays

	mu   sync.Mutex
	next *grpc.ClientConn
}

func (g *grpcStage) close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next == nil {
		return nil
	}
	return g.next.Close()
}

// Ping implements benchpb.BenchServer.
func (g *grpcStage) Ping(context.Context, *benchpb.Nothing) (*benchpb.Nothing, error) {
	return &benchpb.Nothing{}, nil
}

// Increment implements benchpb.BenchServer.
func (g *grpcStage) Increment(ctx context.Context, r *benchpb.IncrementRequest) (*benchpb.Array, error) {
	data, err := g.arrays.Increment(ctx, r.GetData(), int8(r.GetDelta()))
	return &benchpb.Array{Data: data}, err
}

// Add implements benchpb.BenchServer.
func (g *grpcStage) Add(ctx context.Context, r *benchpb.AddRequest) (*benchpb.Array, error) {
	data, err := g.arrays.Add(ctx, r.GetA(), r.GetB())
	return &benchpb.Array{Data: data}, err
}

// Forward implements benchpb.BenchServer.
func (g *grpcStage) Forward(ctx context.Context, r *benchpb.ForwardRequest) (*benchpb.Sum, error) {
	if r.GetLeft() <= 0 {
		return &benchpb.Sum{Sum: sum(r.GetData())}, nil
	}
	next, err := g.client()
	if err != nil {
		return nil, err
	}
	return next.Forward(ctx, &benchpb.ForwardRequest{Data: r.GetData(), Left: r.GetLeft() - 1})
}

func (g *grpcStage) client() (benchpb.BenchClient, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.next == nil {
		conn, err := dialGRPCAt(g.site.hop(g.number + 1))
		if err != nil {
			return nil, err
		}
		g.next = conn
	}
	return benchpb.NewBenchClient(g.next), nil
}

func dialGRPCAt(to netip.AddrPort) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient(fmt.Sprintf("passthrough:///%s", to),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithInitialWindowSize(grpcWindow),
		grpc.WithInitialConnWindowSize(grpcWindow), grpc.WithReadBufferSize(grpcBuffer), grpc.WithWriteBufferSize(grpcBuffer),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(4*MaxSize)), grpc.WithNoProxy())
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", to, err)
	}
	return conn, nil
}
