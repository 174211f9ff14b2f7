package main

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin"
	"github.com/bifrost-rack/bifrost/ingress"
	"github.com/bifrost-rack/bifrost/p4switch/shared/metrics"
	"github.com/bifrost-rack/bifrost/p4switch/shared/process"
	"github.com/bifrost-rack/bifrost/p4switch/shared/sdnotify"
	"github.com/bifrost-rack/bifrost/rack/config"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/prom"
)

// ingressOptions are the flags of `bifrost ingress`.
type ingressOptions struct {
	listen, tokens         string
	cert, key              string
	plain                  bool
	config                 ingress.Config
	keyBytes, body, answer string
	stream                 string
	metrics                string
	logging                process.LogOptions
}

// defaultIngress is where calls from outside of the rack are taken.
const defaultIngress = "127.0.0.1:8046"

func newIngressCmd() *cobra.Command {
	var o ingressOptions
	cmd := &cobra.Command{
		Use:   "ingress",
		Short: "Take calls from outside of the rack, by HTTP",
		Long: `Take calls from outside of the rack by HTTP, with JSON. The ingress is a program of the rack:
it joins through the daemon of a compute blade, and needs no privilege. A rack has one.

POST /call/SERVICE/METHOD makes a call; the body is an object with the arguments. Services
that publish their IDL (rpc.WithIDL) can be called. With an Idempotency-Key header, the call
runs exactly once though the ingress and the client die, and later requests with the key get
the same answer. GET / is a page with a form for each method, and /openapi.json describes the
services. docs/ingress.md has the rest.

Without --tokens, everybody on this machine may call everything, and nobody else may call
anything. With --tokens, a request needs a token of that file. Beyond loopback the ingress
needs --tokens, and TLS unless a proxy in front of it has that (--no-tls).

The answers to calls with keys are in the ledger of the ingress' node. They outlive the
ingress when it is started again on the same blade, or runs as a program of a deployment.`,
		Example: `  bifrost ingress
  sudo bifrost rack exec c1 -- bifrost ingress --listen 127.0.0.1:8046
  bifrost ingress --listen :8443 --tokens ingress.tokens --tls-cert cert.pem --tls-key key.pem
  curl --json '{"account": 1, "amounts": "AQI="}' -H 'Idempotency-Key: "5f2c"' http://127.0.0.1:8046/call/Counter/add`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context()) },
	}
	o.register(cmd.Flags())
	cmd.AddCommand(newIngressTokenCmd())
	return cmd
}

func (o *ingressOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.listen, "listen", defaultIngress, "`ADDRESS` to serve, HOST:PORT")
	f.StringVar(&o.config.Path, "path", "", "what the `PATH` of each request begins with, such as /blue: for several racks behind one address")
	f.StringVar(&o.tokens, "tokens", "", "`FILE` of tokens and the services that each may call (bifrost ingress token)")
	f.StringVar(&o.cert, "tls-cert", "", "`FILE` with the certificate for TLS, and those that signed it")
	f.StringVar(&o.key, "tls-key", "", "`FILE` with the certificate's key")
	f.BoolVar(&o.plain, "no-tls", false, "serve addresses beyond loopback without TLS: a proxy in front has it")
	f.DurationVar(&o.config.Lifetime, "key-lifetime", 24*time.Hour, "for how long the answer to a call with an Idempotency-Key is kept")
	f.IntVar(&o.config.Keys, "keys", 100_000, "how many keys are kept at most")
	f.StringVar(&o.keyBytes, "key-bytes", "16MiB", "how many `BYTES` the keys and their answers take at most; half of the ledger's space is the most that is possible")
	f.DurationVar(&o.config.Timeout, "timeout", 30*time.Second, "how long a request waits that has no header Request-Timeout")
	f.DurationVar(&o.config.MaxTimeout, "max-timeout", 10*time.Minute, "the most that Request-Timeout may say")
	f.StringVar(&o.body, "max-body", "1MiB", "how many `BYTES` the body of a request has at most")
	f.StringVar(&o.answer, "max-answer", "16MiB", "how many `BYTES` an answer has at most that is JSON, or is kept")
	f.StringVar(&o.stream, "max-stream", "1GiB", "how many `BYTES` a body has at most that goes into memory as it comes")
	f.Float64Var(&o.config.Rate, "rate", 1000, "how many requests a client may make in a second; a client is a token, or without --tokens an address")
	f.IntVar(&o.config.Burst, "burst", 2000, "how many requests a client may make at once")
	f.IntVar(&o.config.Concurrent, "concurrent", 1024, "how many calls are under way at a time; each client has its share")
	f.DurationVar(&o.config.BodyTimeout, "body-timeout", 30*time.Second, "how long a client may take to send a request, and again to take its answer")
	f.StringVar(&o.metrics, "metrics-addr", "", "serve metrics to Prometheus at `ADDRESS`, path /metrics: HOST:PORT or unix:PATH")
	o.logging.Register(f, "")
}

// sizes reads the flags that are numbers of bytes.
func (o *ingressOptions) sizes() error {
	var stream int
	for _, f := range []struct {
		name, text string
		to         *int
	}{{"max-stream", o.stream, &stream}, {"key-bytes", o.keyBytes, &o.config.KeyBytes}, {"max-body", o.body, &o.config.MaxBody}, {"max-answer", o.answer, &o.config.MaxAnswer}} {
		n, err := config.ParseSize(f.text)
		if err != nil || n == 0 || n > 1<<30 {
			return fmt.Errorf("--%s %s: want a number of bytes up to 1GiB, such as 4MiB", f.name, f.text)
		}
		*f.to = int(n) //nolint:gosec // bounded
	}
	o.config.MaxStream = int64(stream)
	return nil
}

// run serves until ctx ends.
func (o *ingressOptions) run(ctx context.Context) (err error) {
	if err := o.sizes(); err != nil {
		return err
	}
	log, err := o.logging.Open()
	if err != nil {
		return err
	}
	l, err := o.open(log)
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }() // Serve has closed it, if it came to that
	o.config.Logger = log
	node, err := rpc.Join(ctx, rpc.WithName("ingress"), rpc.WithLogger(log))
	if err != nil {
		return err
	}
	defer func() {
		leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), ingressLeaves)
		defer cancel()
		err = errors.Join(err, node.Close(leaving))
	}()
	s, err := ingress.New(ctx, node, o.config)
	if err != nil {
		return err
	}
	if o.metrics != "" {
		stop, err := metrics.Serve(ctx, o.metrics, append(s.Collectors(), prom.NewCollector(node))...)
		if err != nil {
			return err
		}
		defer stop()
	}
	log.Info("ingress serves", "address", l.Addr().String(), "tls", o.cert != "", "tokens", o.tokens != "", "node", node.Address())
	if err := sdnotify.Ready(); err != nil {
		log.Warn("cannot tell that the ingress is ready", "error", err)
	}
	return s.Serve(ctx, l)
}

// ingressLeaves is how long calls under way may take when the ingress ends. The next one goes on with those that take longer.
const ingressLeaves = 5 * time.Second

// open listens, if that is safe.
func (o *ingressOptions) open(log *slog.Logger) (net.Listener, error) {
	if o.tokens != "" {
		var err error
		if o.config.Tokens, err = ingress.OpenTokens(o.tokens, log); err != nil {
			return nil, fmt.Errorf("--tokens: %w", err)
		}
	}
	if (o.cert == "") != (o.key == "") {
		return nil, errors.New("--tls-cert and --tls-key: give both or neither")
	}
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w", o.listen, err)
	}
	if a, ok := l.Addr().(*net.TCPAddr); ok && !a.IP.IsLoopback() {
		switch {
		case o.tokens == "":
			err = fmt.Errorf("--listen %s can be reached from elsewhere: it needs --tokens, or a loopback address", o.listen)
		case o.cert == "" && !o.plain:
			err = fmt.Errorf("--listen %s can be reached from elsewhere: it needs --tls-cert and --tls-key, or --no-tls if a proxy in front of it has TLS", o.listen)
		}
	}
	if err == nil && o.cert != "" {
		var pair tls.Certificate
		if pair, err = tls.LoadX509KeyPair(o.cert, o.key); err == nil {
			return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}), nil
		}
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func newIngressTokenCmd() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use:   "token NAME SERVICE...",
		Short: "Make a token that may call services by the ingress",
		Long: `Make a token that may call services by the ingress, and print it. The file gets a line with
the name, the token's hash and the services; keep the token, since it cannot be printed again.
The service * stands for all. An ingress reads the file again when it changes: to revoke a
token, take its line out.`,
		Example: "  bifrost ingress token shop Orders Payments --tokens ingress.tokens\n  bifrost ingress token everything '*' --tokens ingress.tokens",
		Args:    cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				return errors.New("--tokens: name the file of tokens")
			}
			token := admin.NewToken()
			if err := addGrant(file, args[0], token, args[1:]); err != nil {
				return err
			}
			_, err := fmt.Fprintln(cmd.OutOrStdout(), token)
			return err
		},
	}
	cmd.Flags().StringVar(&file, "tokens", "", "`FILE` of tokens, the same as for bifrost ingress")
	return cmd
}

// addGrant adds a line to a file of tokens, which it makes if there is none.
func addGrant(file, name, token string, services []string) error {
	line := fmt.Sprintf("%s %x %s\n", name, sha256.Sum256([]byte(token)), strings.Join(services, ","))
	before, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	all, err := ingress.ParseGrants(slices.Concat(before, []byte(line)))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if last := all[len(all)-1]; last.Name != name || !slices.Equal(last.Services, services) {
		return fmt.Errorf("name %q and services %q: want words without spaces, commas and #", name, services)
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(line)
	return errors.Join(err, f.Sync(), f.Close())
}
