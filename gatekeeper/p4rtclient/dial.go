package p4rtclient

import (
	"context"
	"net"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/shared/spin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// maxMessage bounds what a switch may send in one message, in bytes: a chunk of
// a large table.
const maxMessage = 64 << 20

// How long a switch may take to answer a request, and to load the program: it verifies, compiles and installs it, which takes seconds of a CPU or of a
// chip's driver. A controller that gave up sooner and asked again would have it begin anew each time.
const (
	answerTimeout = 10 * time.Second
	loadTimeout   = 5 * time.Minute
)

// DialOptions are what a connection to a switch should have: it is found again
// soon after a restart, and many jumbo packets may be under way. Credentials are
// not among them.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(dial),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: waits.First, Multiplier: 2, Jitter: 0.2, MaxDelay: waits.Most},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithInitialWindowSize(4 << 20),
		grpc.WithInitialConnWindowSize(8 << 20),
	}
}

// dial connects to HOST:PORT or unix:PATH. Held packets go to and fro on this
// connection, so its reads spin where that pays.
func dial(ctx context.Context, address string) (net.Conn, error) {
	network := "tcp"
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		network, address = "unix", path
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return spin.Conn(c), nil
}
