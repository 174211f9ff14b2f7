package ingress

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"sync"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/ingress/gen-go/durable"
	"github.com/bifrost-rack/bifrost/ingress/keys"
	"github.com/bifrost-rack/bifrost/ingress/thriftjson"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Config says what an ingress takes. A field that is 0 stands for its default.
type Config struct {
	// Tokens says who may call what. Nil lets everybody call everything, from this machine only: requests for a host that is not
	// a loopback one are refused then.
	Tokens *Tokens
	// Path is what the paths of all requests begin with, such as "/blue": several racks can be behind one address then. Requests for another
	// path are refused. The default is "".
	Path string
	// Lifetime is for how long the answer to a call with a key is kept, from when its request came. Default: 24 hours.
	Lifetime time.Duration
	// Keys is how many keys are kept at most, and KeyBytes how many bytes they and their answers take. They are in the state of a
	// service, which may take half of its node's ledger. Defaults: 100,000 and 16 MiB.
	Keys, KeyBytes int
	// Timeout is how long a request waits that does not say, and MaxTimeout the most that it may say. Defaults: 30 s and 10 minutes.
	Timeout, MaxTimeout time.Duration
	// MaxBody and MaxAnswer bound the JSON of a request and of its answer, in bytes. Defaults: 1 MiB and 16 MiB.
	MaxBody, MaxAnswer int
	// MaxStream bounds a body that goes into memory, in bytes. Default, and the most: 1 GiB.
	MaxStream int64
	// Rate is how many requests a second a client may make, and Burst how many at once. A client is a token, or without tokens an
	// address. Defaults: 1000 and 2000.
	Rate  float64
	Burst int
	// Concurrent is how many calls are under way at a time, of which each client has its share. Default: 1024.
	Concurrent int
	// BodyTimeout is how long a client may take to send a request, and again to take its answer; of what is larger than MaxBody it is
	// for each MaxBody bytes. Default: 30 s.
	BodyTimeout time.Duration
	// Logger receives a line for each request, and what is wrong. Nil discards it.
	Logger *slog.Logger
}

// withDefaults fills in what is left out.
func (c Config) withDefaults() Config {
	for _, f := range []struct {
		value     *time.Duration
		otherwise time.Duration
	}{{&c.Lifetime, 24 * time.Hour}, {&c.Timeout, 30 * time.Second}, {&c.MaxTimeout, 10 * time.Minute}, {&c.BodyTimeout, 30 * time.Second}} {
		if *f.value <= 0 {
			*f.value = f.otherwise
		}
	}
	for _, f := range []struct {
		value     *int
		otherwise int
	}{{&c.Keys, 100_000}, {&c.KeyBytes, 16 << 20}, {&c.MaxBody, 1 << 20}, {&c.MaxAnswer, 16 << 20}, {&c.Burst, 2000}, {&c.Concurrent, 1024}} {
		if *f.value <= 0 {
			*f.value = f.otherwise
		}
	}
	if c.MaxStream <= 0 || c.MaxStream > rpc.MaxRef {
		c.MaxStream = rpc.MaxRef
	}
	if c.Rate <= 0 {
		c.Rate = 1000
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}

// Server is an ingress. Its methods may be called concurrently.
type Server struct {
	node    *rpc.Node
	config  Config
	log     *slog.Logger
	catalog *catalog
	keeper  *keeper
	caller  *caller
	clients *clients
	figures *figures
	handler http.Handler

	mu      sync.Mutex
	targets map[target]thrift.TClient
}

// target is what a client of the node is for.
type target struct{ service, method, policy string }

// New makes a node an ingress: it exports the ingress' own services, and goes on with what the node's ledger has of them. The node is the
// ingress' alone. It fails if another node of the rack is an ingress.
func New(ctx context.Context, node *rpc.Node, c Config) (*Server, error) {
	c = c.withDefaults()
	if !validPath.MatchString(c.Path) {
		return nil, fmt.Errorf("path %.128q: want something like /blue: letters, digits and the characters - . _ ~ between slashes", c.Path)
	}
	s := &Server{
		node: node, config: c, log: c.Logger, catalog: newCatalog(node), clients: newClients(&c), targets: map[target]thrift.TClient{},
	}
	s.keeper = newKeeper(keys.Limits{Keys: c.Keys, Bytes: c.KeyBytes, Lifetime: c.Lifetime, Instead: tooLarge}, s.ownCall)
	s.caller = &caller{s: s, flights: map[string]*flight{}}
	s.figures = newFigures(s)
	s.handler = s.routes()
	if err := node.Export(ctx, keysService, durable.NewKeysProcessor(s.keeper), rpc.WithState(s.keeper)); err != nil {
		return nil, err
	}
	// A call is never given up: its key would be without an outcome.
	err := node.Export(ctx, callerService, durable.NewCallerProcessor(s.caller), rpc.WithMaxFailures(0), rpc.WithWorkers(c.Concurrent), rpc.WithQueue(c.Concurrent))
	if err != nil {
		return nil, err
	}
	return s, nil
}

// validPath matches what the paths of requests may begin with.
var validPath = regexp.MustCompile(`^(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*$`)

// ownCall refuses calls of the ingress' services by others: they would be made in the ingress' name.
func (s *Server) ownCall(ctx context.Context) error {
	if rpc.CallerAddress(ctx) != s.node.Address() {
		return rpc.Errorf(rpc.PermissionDenied, "only the ingress itself may call this")
	}
	return nil
}

// Handler serves HTTP.
func (s *Server) Handler() http.Handler { return s.handler }

// headerTimeout bounds the headers of a request; idleTimeout ends connections that nobody uses; leaveTimeout is how long requests under way
// may take when the server ends.
const (
	headerTimeout = 5 * time.Second
	idleTimeout   = 2 * time.Minute
	leaveTimeout  = 5 * time.Second
	maxHeader     = 32 << 10
)

// Serve serves a listener, which it closes, until ctx or the node ends.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	server := &http.Server{
		Handler: s.handler, ReadHeaderTimeout: min(headerTimeout, s.config.BodyTimeout), IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(l) }()
	var err error
	select {
	case <-ctx.Done():
	case <-s.node.Done():
		err = errors.New("the ingress has lost its place in the rack")
	case err = <-failed:
		return err
	}
	leaving, stop := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer stop()
	if server.Shutdown(leaving) != nil {
		_ = server.Close() // whoever waits still may come again with the key
	}
	if closed := <-failed; !errors.Is(closed, http.ErrServerClosed) {
		err = errors.Join(err, closed)
	}
	return err
}

// newNonce tells a request from all others.
func newNonce() []byte {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // it does not fail
	return b
}

// perform makes the call that a client asks for. It is begun unless the call has certainly never begun. The body is nil for a request that
// has its arguments in it.
func (s *Server) perform(ctx context.Context, r *durable.Request, body *bifrost.Reference) (o *durable.Outcome, begun bool) {
	client, method := s.target(target{r.Target, r.Method, r.Policy}), r.Method
	if body != nil || r.Raw {
		method += rpcpacket.RefSuffix
	}
	args := &arguments{plain: r.Arguments, body: body, id: r.GetBody()}
	if r.NoAnswer {
		if _, err := client.Call(ctx, method, args, nil); err != nil {
			return failed(err).outcome(), !rpc.NeverBegan(err)
		}
		return jsonResult([]byte("null")), true
	}
	a := &answer{s: s, request: r}
	_, err := client.Call(ctx, method, args, a)
	switch {
	case a.unreadable != nil:
		return unreadable(a.unreadable).outcome(), true
	case err != nil:
		return failed(err).outcome(), !rpc.NeverBegan(err)
	case a.is.Exception != "":
		return declared(&a.is).outcome(), true
	case a.is.ByReference:
		return s.deliver(ctx, r, &a.reference), true
	}
	return jsonResult(a.is.JSON), true
}

func jsonResult(json []byte) *durable.Outcome {
	return &durable.Outcome{Status: http.StatusOK, MediaType: jsonMedia, Body: json}
}

// maxTargets is how many clients of methods are remembered; then all are forgotten.
const maxTargets = 4096

// target returns the client for a method.
func (s *Server) target(t target) thrift.TClient {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.targets[t]
	if c != nil {
		return c
	}
	if len(s.targets) >= maxTargets {
		clear(s.targets)
	}
	options := []rpc.ClientOption{rpc.WithPlainCalls()} // of calls without a key
	if p, ok := policies[t.policy]; ok {
		options = append(options, rpc.WithPolicy(p))
	}
	c = s.node.Client(t.service, options...)
	s.targets[t] = c
	return c
}

// policies are those that an IDL can ask for.
var policies = map[string]rpc.Policy{
	"none": rpc.PolicyNone, "recover": rpc.PolicyRecover, "fate-share": rpc.PolicyFateShare, "tainted": rpc.PolicyTainted,
}

// answer is the result of a call as its client reads it.
type answer struct {
	s       *Server
	request *durable.Request

	is         thriftjson.Answer
	reference  bifrost.Reference // the result, if it comes by reference
	unreadable error
}

// Read implements thrift.TStruct. An execution that is run again may read with another IDL than the one before: nobody has seen what that
// one has read.
func (a *answer) Read(ctx context.Context, p thrift.TProtocol) error {
	o, err := a.s.catalog.find(ctx, a.request.Target)
	switch {
	case err != nil:
		a.unreadable = err
	case o == nil:
		a.unreadable = errors.New("service " + a.request.Target + " is gone, and its IDL with it")
	default:
		m, refused := o.method(a.request.Method)
		if refused != nil {
			a.unreadable = errors.New(refused.Detail)
			break
		}
		a.is, a.unreadable = thriftjson.ReadAnswer(ctx, p, m, a.s.config.MaxAnswer, &a.reference)
		return a.unreadable
	}
	return p.Skip(ctx, thrift.STRUCT)
}

// Write implements thrift.TStruct.
func (a *answer) Write(context.Context, thrift.TProtocol) error { return errReadOnly }

var errReadOnly = errors.New("answers are only read")
