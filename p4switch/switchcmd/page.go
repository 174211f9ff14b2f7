package switchcmd

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/graph"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch"
	"github.com/bifrost-rack/bifrost/p4switch/trace"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

//go:embed page
var pageFiles embed.FS

// pagePolicy lets the page use its own files and what the command tells, and nothing else.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// pageOptions are the flags of `bifrost switch page`.
type pageOptions struct {
	Client
	listen string
}

func newSwitchPageCmd() *cobra.Command {
	var o pageOptions
	cmd := &cobra.Command{
		Use:   "page",
		Short: "Open a page of a running switch in a browser: ports, tables, and packets on their way through the program",
		Long: `Serve a page of a running switch on this machine, and print its address: what the ports carry, the
tables with their hits, and the program, on which packets show where they have been. The command
runs until Ctrl-C, and asks the switch at its P4Runtime address. The page only looks: it writes nothing.

A token stands after the # of the address, and browsers send that part to no server. Still, anybody
who has the address sees what packets carry: do not pass it on.`,
		Example: `  bifrost switch page
  ssh -L 8046:127.0.0.1:8046 switchhost sudo bifrost switch page --listen 127.0.0.1:8046    # from another machine`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	f := cmd.Flags()
	o.Register(f, "grpc-addr", "a controller's")
	f.StringVar(&o.listen, "listen", "127.0.0.1:0", "loopback `HOST:PORT` where the page is served; port 0 is any that is free")
	return cmd
}

func (o *pageOptions) run(ctx context.Context, w io.Writer) error {
	conn, err := o.Dial()
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // only read from
	if _, err := softswitch.ReadState(ctx, conn); err != nil {
		return fmt.Errorf("no switch with a page answers at %s: %s (see --grpc-addr)", o.Address, status.Convert(err).Message())
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	if a, ok := l.Addr().(*net.TCPAddr); !ok || !a.IP.IsLoopback() {
		return errors.Join(fmt.Errorf("--listen %s can be reached from elsewhere, and the page shows what packets carry: use a loopback address, and forward it with ssh -L", o.listen), l.Close())
	}
	token := rand.Text()
	server := &http.Server{
		Handler: pageHandler(conn, token), ReadHeaderTimeout: 5 * time.Second, MaxHeaderBytes: 1 << 14,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if _, err := fmt.Fprintf(w, "http://%s/#token=%s\n", l.Addr(), token); err != nil {
		return errors.Join(err, l.Close())
	}
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// pageHandler serves the page to everybody, and what it shows of the switch to those who have the token.
func pageHandler(conn grpc.ClientConnInterface, token string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, pageFiles, "page/index.html") })
	mux.Handle("GET /page/", http.FileServerFS(pageFiles))
	api := http.NewServeMux()
	api.HandleFunc("GET /api/state", func(w http.ResponseWriter, r *http.Request) {
		st, err := softswitch.ReadState(r.Context(), conn)
		answer(w, st, err)
	})
	api.HandleFunc("GET /api/program", func(w http.ResponseWriter, r *http.Request) {
		p, err := softswitch.ReadProgram(r.Context(), conn)
		answer(w, p, err)
	})
	api.HandleFunc("POST /api/trace", func(w http.ResponseWriter, r *http.Request) { tellPage(w, r, conn) })
	mux.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || subtle.ConstantTimeCompare([]byte(given), []byte(token)) != 1 {
			fail(w, http.StatusUnauthorized, "this tab has no token: open the address that the command has printed, all of it")
			return
		}
		api.ServeHTTP(w, r)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", pagePolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		mux.ServeHTTP(w, r)
	})
}

// pageTrace is a line of a trace for the page: that it has begun, a packet and its way, or an error.
type pageTrace struct {
	Program uint64        `json:"program,omitempty"`
	Packet  *trace.Packet `json:"packet,omitempty"`
	Way     []graph.Visit `json:"way,omitempty"`
	Error   string        `json:"error,omitempty"`
}

// mostRead bounds what the page sends.
const mostRead = 1 << 16

// tellPage tells the page what becomes of packets, a line of JSON for each, until it goes or the trace ends.
func tellPage(w http.ResponseWriter, r *http.Request, conn grpc.ClientConnInterface) {
	var spec trace.Spec
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostRead)).Decode(&spec); err != nil {
		fail(w, http.StatusBadRequest, "no trace.Spec: "+err.Error())
		return
	}
	program, err := softswitch.ReadProgram(r.Context(), conn)
	if err != nil {
		answer(w, nil, err)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	line := func(t pageTrace) error {
		if err := json.NewEncoder(w).Encode(t); err != nil {
			return err
		}
		return http.NewResponseController(w).Flush()
	}
	_, err = softswitch.WatchTraces(r.Context(), conn, spec, func() { _ = line(pageTrace{Program: program.Number}) }, func(p *trace.Packet) error {
		return line(pageTrace{Program: program.Number, Packet: p, Way: program.Graph.Way(p)})
	})
	if err != nil && r.Context().Err() == nil {
		_ = line(pageTrace{Error: status.Convert(err).Message()})
	}
}

// answer writes what the switch has told, or why it has not.
func answer(w http.ResponseWriter, v any, err error) {
	if err != nil {
		fail(w, http.StatusBadGateway, status.Convert(err).Message())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // or the page is gone
}

func fail(w http.ResponseWriter, code int, why string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": why}) // or the page is gone
}
