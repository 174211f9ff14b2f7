package peer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/bench/idl/gen-go/hop"
)

// Apache Thrift's Go library over TCP. Go sets TCP_NODELAY, buffers are large
// enough for a message to leave in one write where the transport can, and the
// server's check for callers that have gone, which starts a goroutine for every
// call, is off.
var (
	thriftFramed = Peer{
		Name: "thrift-framed", Title: "Thrift, TCP, framed", Serve: framed.serve, Dial: framed.dial,
		Setup: "Apache Thrift for Go, TSocket with NODELAY, TFramedTransport, TBinaryProtocol, TSimpleServer (a goroutine per connection), no connectivity check",
	}
	thriftBuffered = Peer{
		Name: "thrift-buffered", Title: "Thrift, TCP, buffered", Serve: buffered.serve, Dial: buffered.dial,
		Setup: "Apache Thrift for Go, TSocket with NODELAY, TBufferedTransport of 64 KiB, TBinaryProtocol, TSimpleServer, no connectivity check",
	}
)

// A server that ends does not wait for clients that stay connected, as the stages
// of a chain do with each other. (The library has one setting for all servers.)
func init() { thrift.ServerStopTimeout = 100 * time.Millisecond }

// thriftBuffer is the size of TBufferedTransport's buffers in bytes.
const thriftBuffer = 64 << 10

// thriftKind is a way to use Thrift over TCP.
type thriftKind struct{ transport thrift.TTransportFactory }

var (
	thriftConfig = &thrift.TConfiguration{MaxMessageSize: 4 * MaxSize, MaxFrameSize: 4 * MaxSize}
	framed       = thriftKind{thrift.NewTFramedTransportFactoryConf(thrift.NewTTransportFactory(), thriftConfig)}
	buffered     = thriftKind{thrift.NewTBufferedTransportFactory(thriftBuffer)}
)

func thriftProtocol() thrift.TProtocolFactory {
	return thrift.NewTBinaryProtocolFactoryConf(thriftConfig)
}

// thriftServer is the servers of one process.
type thriftServer struct {
	servers []*thrift.TSimpleServer
	hops    []*hopHandler
	running sync.WaitGroup
}

func (k thriftKind) serve(_ context.Context, s Site) (Server, error) {
	t := &thriftServer{}
	if s.Index == 0 {
		if err := t.add(k, s.main(), processor(valueHandler{})); err != nil {
			return nil, err
		}
	}
	for _, n := range s.own() {
		h := newHop(n, k.dialer(s))
		t.hops = append(t.hops, h)
		if err := t.add(k, s.hop(n), hop.NewHopProcessor(h)); err != nil {
			return nil, errors.Join(err, t.Close())
		}
	}
	return t, nil
}

// add starts a server.
func (t *thriftServer) add(k thriftKind, at netip.AddrPort, p thrift.TProcessor) error {
	socket, err := thrift.NewTServerSocket(at.String())
	if err == nil {
		err = socket.Listen()
	}
	if err != nil {
		return fmt.Errorf("listen at %s: %w", at, err)
	}
	server := thrift.NewTSimpleServer4(p, socket, k.transport, thriftProtocol())
	server.SetLogContext(context.Background())
	t.servers = append(t.servers, server)
	t.running.Go(func() { _ = server.AcceptLoop() })
	return nil
}

// Close ends the servers.
func (t *thriftServer) Close() error {
	for _, h := range t.hops {
		h.close()
	}
	var err error
	for _, s := range t.servers {
		err = errors.Join(err, s.Stop())
	}
	t.running.Wait()
	return err
}

// dialer returns what connects to the servers.
func (k thriftKind) dialer(s Site) dialer {
	return func(_ context.Context, _ string, stage int) (thrift.TClient, func(), error) {
		to := s.main()
		if stage > 0 {
			to = s.hop(stage)
		}
		transport, err := k.transport.GetTransport(thrift.NewTSocketConf(to.String(), thriftConfig))
		if err == nil {
			err = transport.Open()
		}
		if err != nil {
			return nil, nil, fmt.Errorf("connect to %s: %w", to, err)
		}
		p := thriftProtocol()
		return thrift.NewTStandardClient(p.GetProtocol(transport), p.GetProtocol(transport)), func() { _ = transport.Close() }, nil
	}
}

func (k thriftKind) dial(_ context.Context, s Site) (Client, error) {
	return thriftClient{k.dialer(s)}, nil
}

// thriftClient gives each operation a connection of its own, as Thrift's clients
// are not for several goroutines.
type thriftClient struct{ dialer dialer }

// Prepare implements Client.
func (c thriftClient) Prepare(ctx context.Context, w Work) (Operation, func(), error) {
	return byValue(ctx, c.dialer, w)
}

// Close does nothing.
func (thriftClient) Close() error { return nil }
