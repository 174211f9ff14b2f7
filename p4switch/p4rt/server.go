package p4rt

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	"github.com/bifrost-rack/bifrost/p4switch/shared/outstream"
	"github.com/bifrost-rack/bifrost/p4switch/shared/spin"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
)

// APIVersion is the version of the P4Runtime API that Capabilities reports.
const APIVersion = "1.5.0"

// LoadFunc builds a Datapath for a program. The datapath is not in the path of
// any packet until Config.Commit makes it so, but can be written and read. sink
// receives what the data plane has for the controller. With goOn, it goes on with the
// registers of the one that was committed last, if both programs have the same ones:
// each sees at once what packets change at the other (registerHeir). Else they are empty.
type LoadFunc func(info *p4info.Info, deviceConfig []byte, sink datapath.Sink, goOn bool) (datapath.Datapath, error)

// registerHeir is a Datapath that can tell whether it has the registers of another one.
type registerHeir interface {
	HasRegistersOf(datapath.Datapath) bool
}

// Config is what a Server needs.
type Config struct {
	// DeviceID is the device's id. P4Runtime reserves 0; bmv2's users have it.
	DeviceID uint64
	// Load builds a Datapath; required.
	Load LoadFunc
	// Commit makes a Datapath that Load built the path of all packets from then
	// on. The server closes the previous one afterwards, and Close returns when
	// no packet is on its path any more. nil if Load's result needs nothing.
	Commit func(datapath.Datapath)
	// Persister, if not nil, keeps what controllers write beyond this process.
	Persister Persister
	// Services, if not nil, adds other services to the server.
	Services func(grpc.ServiceRegistrar)
	// TLS secures the connections; nil means plain text.
	TLS *tls.Config
	// Log receives notable events; nil discards them.
	Log *slog.Logger
}

// Server is a P4Runtime server for one device. All methods may be called
// concurrently.
type Server struct {
	p4v1.UnimplementedP4RuntimeServer
	cfg  Config
	log  *slog.Logger
	grpc *grpc.Server

	arb  *arbiter
	turn sync.Mutex // makes arbitration transitions, with their notices, one at a time

	loading chan struct{} // capacity 1: a controller's program is being loaded

	mu   sync.RWMutex // see the package comment
	pipe *pipeline    // what reads and writes refer to; nil before the first config

	live  atomic.Pointer[pipeline] // what packets run through; nil before the first commit
	ports ports
	stats stats
}

// New makes a server; Serve makes it answer.
func New(cfg Config) (*Server, error) {
	if cfg.Load == nil {
		return nil, errors.New("p4rt: Config.Load is required")
	}
	s := &Server{cfg: cfg, log: cfg.Log, arb: newArbiter(cfg.DeviceID), loading: make(chan struct{}, 1)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.grpc = grpc.NewServer(s.options()...)
	p4v1.RegisterP4RuntimeServer(s.grpc, s)
	if cfg.Services != nil {
		cfg.Services(s.grpc)
	}
	return s, nil
}

func (s *Server) options() []grpc.ServerOption {
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(outstream.Codec()),
		grpc.MaxRecvMsgSize(maxMessageSize),
		grpc.InitialWindowSize(receiveWindow),
		grpc.InitialConnWindowSize(receiveWindow),
		grpc.WaitForHandlers(true),
		// A Write runs on a goroutine that has a stack already.
		grpc.NumStreamWorkers(streamWorkers),
		// A controller whose host has died silently is noticed within a minute.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 40 * time.Second, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	}
	if s.cfg.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(s.cfg.TLS)))
	}
	return opts
}

// Serve answers controllers on a listener until Close, or until the listener
// fails. It may be called for several listeners. Reads of their connections spin
// where that pays, since held packets wait for what a controller answers.
func (s *Server) Serve(l net.Listener) error {
	if err := s.grpc.Serve(spin.Listener(l)); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return err
	}
	return nil
}

// Close ends all streams and calls, closes the datapaths, and returns when
// nothing of the server runs any more.
func (s *Server) Close() error {
	s.grpc.Stop()
	s.ports.close()
	s.mu.Lock()
	pipe, live := s.pipe, s.live.Swap(nil)
	s.pipe = nil
	s.mu.Unlock()
	return errors.Join(pipe.close(), live.close()) // closing twice is harmless
}

// Capabilities implements the RPC of that name.
func (s *Server) Capabilities(_ context.Context, r *p4v1.CapabilitiesRequest) (*p4v1.CapabilitiesResponse, error) {
	if id := r.GetDeviceId(); id != 0 && id != s.cfg.DeviceID {
		return nil, s.wrongDevice(id)
	}
	m := &p4v1.CapabilitiesResponse{P4RuntimeApiVersion: APIVersion}
	var err error
	m.Experimental, err = experimental()
	return m, err
}

func (s *Server) wrongDevice(id uint64) error {
	return status.Errorf(codes.NotFound, "device %d is unknown, this is device %d", id, s.cfg.DeviceID)
}

// Entries counts the entries of all tables, by the tables' names.
func (s *Server) Entries() map[string]int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := map[string]int{}
	if s.pipe != nil {
		for _, t := range s.pipe.store.tables {
			all[t.info.Name] = t.entries.len()
		}
	}
	return all
}

// Stats are counters of what the server had to do without.
type Stats struct {
	PacketInDrops  uint64 // PacketIns for which there was no primary or no room
	PacketInErrors uint64 // frames too short for the program's packet_in header
	PacketOuts     uint64 // PacketOuts handed to the data plane
	PacketOutDrops uint64 // PacketOuts refused
	DigestDrops    uint64 // samples of digests that nobody enabled, or without room
	IdleDrops      uint64 // idle notifications without a primary or room
}

type stats struct {
	packetInDrops, packetInErrors, packetOuts, packetOutDrops, digestDrops, idleDrops atomic.Uint64
}

// Stats reads the counters.
func (s *Server) Stats() Stats {
	return Stats{
		PacketInDrops: s.stats.packetInDrops.Load(), PacketInErrors: s.stats.packetInErrors.Load(),
		PacketOuts: s.stats.packetOuts.Load(), PacketOutDrops: s.stats.packetOutDrops.Load(),
		DigestDrops: s.stats.digestDrops.Load(), IdleDrops: s.stats.idleDrops.Load(),
	}
}
