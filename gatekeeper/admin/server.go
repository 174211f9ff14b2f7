package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"github.com/danielgtaylor/huma/v2"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/bifrost-rack/bifrost/gatekeeper/history"
)

// Config is what a Server needs. Only Backend is required.
type Config struct {
	Backend Backend
	// Grants are the tokens of which requests over TCP have to carry one; without
	// them, only trusted listeners can be served.
	Grants Grants
	// History is what was before this run, and what is to be kept of it; whoever made it runs
	// it. Nil keeps nothing.
	History *history.History
	// Version of the program, for people.
	Version string
	// Metrics are figures of the process beside the Gatekeeper's, for /metrics.
	Metrics []prometheus.Collector
	// Log receives what happens; nil discards it.
	Log *slog.Logger
}

// Server serves the admin API of one Gatekeeper.
type Server struct {
	backend Backend
	history *history.History
	grants  Grants
	version string
	log     *slog.Logger

	hub      *hub
	streams  semaphore
	reading  chan struct{} // holds one who reads the switch's rules
	document []byte        // the OpenAPI document
	registry *prometheus.Registry
	traffic  *traffic
	handler  http.Handler // behind authentication
}

// New makes a Server; Run makes it work.
func New(cfg Config) (*Server, error) {
	if cfg.Backend == nil {
		return nil, errors.New("admin: Config.Backend is required")
	}
	if token, ok := cfg.Grants.(OneToken); ok {
		if err := CheckToken(string(token)); err != nil {
			return nil, err
		}
	}
	s := &Server{
		backend: cfg.Backend, history: cfg.History, grants: cfg.Grants, version: cfg.Version, log: cfg.Log,
		hub: &hub{boot: bootOf(cfg.Backend.Settings())}, streams: make(semaphore, maxStreams), reading: make(chan struct{}, 1),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.history != nil {
		s.hub.note, s.hub.before = s.history.Note, history.MaxEvents
	} else {
		s.history = history.New("", s.log)
	}
	s.newMetrics()
	s.registry.MustRegister(cfg.Metrics...)
	mux := http.NewServeMux()
	if err := s.register(mux); err != nil {
		return nil, err
	}
	s.handler = audit(s.log, s.traffic.count(problems(mux)))
	return s, nil
}

// register puts everything on the mux.
func (s *Server) register(mux *http.ServeMux) (err error) {
	h := newHuma(mux)
	for _, register := range []func(huma.API){s.registerRack, s.registerWork, s.registerGraph, s.registerStream, s.registerActions, s.registerApps, s.registerPolicies, s.registerBackup} {
		register(h)
	}
	if s.document, err = h.OpenAPI().MarshalJSON(); err != nil {
		return fmt.Errorf("admin: OpenAPI document: %w", err)
	}
	mux.HandleFunc("GET /v1/openapi.json", s.openapi)
	mux.HandleFunc("GET /healthz", s.healthz)
	mux.HandleFunc("GET /readyz", s.readyz)
	mux.Handle("GET /metrics", s.metricsHandler())
	registerPage(mux)
	return nil
}

// Handler serves one kind of listener: with trusted, nobody is asked for the token.
// Events are there only while Run runs.
func (s *Server) Handler(trusted bool) http.Handler {
	h := s.handler
	if !trusted {
		h = Authorize(s.grants, s.refuse, h)
	}
	return harden(h)
}

// refuse counts and logs a request without the right to make it.
func (s *Server) refuse(r *http.Request, reason string) {
	s.traffic.refused.WithLabelValues(reason).Inc()
	s.log.Warn("refused", "reason", reason, "from", r.RemoteAddr, "method", r.Method, "path", r.URL.Path)
}

// Run serves listeners, which it closes, until ctx ends or one of them fails. It
// must be called once.
func (s *Server) Run(ctx context.Context, listeners ...Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make(chan error, len(listeners))
	var servers []*http.Server
	var wg sync.WaitGroup
	events := s.backend.Subscribe(ctx) // before anybody is answered: who has had an answer misses nothing that happens later
	wg.Go(func() { s.hub.run(events) })
	wg.Go(func() {
		if earlier := s.history.Events(ctx); len(earlier) > 0 {
			s.hub.recall(earlier)
		}
	})
	for _, l := range listeners {
		if !l.Trusted && s.grants == nil {
			errs <- fmt.Errorf("admin: %s needs a token", l.Addr())
			_ = l.Close()
			continue
		}
		if l.visitors != nil {
			l.visitors.turnedAway = s.traffic.refused.WithLabelValues("stranger").Inc
		}
		server := NewHTTPServer(ctx, s.Handler(l.Trusted), s.log)
		servers = append(servers, server)
		wg.Go(func() {
			if err := server.Serve(l.Listener); !errors.Is(err, http.ErrServerClosed) {
				errs <- fmt.Errorf("admin API at %s: %w", l.Addr(), err)
			}
		})
		s.log.Info("admin API", "address", l.Addr().String(), "tls", l.TLS, "token", !l.Trusted)
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-errs:
	}
	cancel() // ends the streams
	for _, server := range servers {
		err = errors.Join(err, shutdown(server))
	}
	wg.Wait()
	return err
}

// NewHTTPServer returns a server with the admin API's bounds. The contexts of its
// requests end with ctx.
func NewHTTPServer(ctx context.Context, h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, BaseContext: func(net.Listener) context.Context { return ctx }, ConnContext: withVisitor,
		ReadHeaderTimeout: headerTimeout, ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// shutdown lets requests under way end, but not for ever.
func shutdown(server *http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		return errors.Join(err, server.Close())
	}
	return nil
}

// semaphore counts up to its capacity.
type semaphore chan struct{}

func (s semaphore) acquire() bool {
	select {
	case s <- struct{}{}:
		return true
	default:
		return false
	}
}

func (s semaphore) release() { <-s }
