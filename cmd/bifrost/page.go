package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
)

// pageOptions are the flags of `bifrost page`.
type pageOptions struct {
	clientOptions
	listen string
}

func newPageCmd() *cobra.Command {
	var o pageOptions
	cmd := o.command(&cobra.Command{
		Use:   "page",
		Short: "Open the page of a rack in a browser",
		Long: `Print the address of the Gatekeeper's page, with the token that the page needs. If the
Gatekeeper has a Unix socket only, as bifrost rack up starts it, the command first forwards
a port of this machine to the socket, and runs until Ctrl-C.

The token stands after the # of the address, and browsers send that part to no server.
Still, anybody who has the address has access: do not pass it on.`,
		Example: `  sudo bifrost page
  sudo bifrost page --rack demo --listen 127.0.0.1:9000
  ssh -L 8045:127.0.0.1:8045 rackhost sudo bifrost page    # from another machine`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := o.target()
			if err != nil {
				return err
			}
			return o.run(func(c *client.Client) error {
				if _, err := c.Status(cmd.Context()); err != nil {
					return err
				}
				return o.open(cmd.Context(), cmd.OutOrStdout(), cfg)
			})
		},
	})
	cmd.Flags().StringVar(&o.listen, "listen", defaultAdmin, "loopback `HOST:PORT` that is forwarded to a Gatekeeper's Unix socket")
	return cmd
}

// open prints the page's address; a Unix socket it serves until ctx ends.
func (o *pageOptions) open(ctx context.Context, w io.Writer, cfg client.Config) error {
	path, unix := strings.CutPrefix(cfg.Address, "unix:")
	if !unix {
		address := cfg.Address
		if !strings.Contains(address, "://") {
			address = map[bool]string{false: "http://", true: "https://"}[cfg.TLS != nil] + address
		}
		return printPage(w, address, cfg.Token)
	}
	l, err := admin.Listen(o.listen, nil)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	token := admin.NewToken()
	server := admin.NewHTTPServer(ctx, admin.Authorize(admin.OneToken(token), nil, socketProxy(path)), slog.New(slog.DiscardHandler))
	server.WriteTimeout = 0 // streams of events last; the Gatekeeper bounds the rest
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := printPage(w, "http://"+l.Addr().String(), token); err != nil {
		return errors.Join(err, l.Close())
	}
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func printPage(w io.Writer, address, token string) error {
	if token != "" {
		token = "#token=" + url.QueryEscape(token)
	}
	_, err := fmt.Fprintf(w, "%s/%s\n", strings.TrimSuffix(address, "/"), token)
	return err
}

// socketProxy passes requests on to a Unix socket.
func socketProxy(path string) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: "gatekeeper"})
			r.Out.Header.Del("Authorization") // it was for us
		},
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}},
		FlushInterval: -1, // events, as they come
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			admin.Fail(w, http.StatusBadGateway, "the Gatekeeper cannot be reached: "+err.Error())
		},
	}
}
