package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"

	"golang.org/x/sync/errgroup"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin"
	"github.com/bifrost-rack/bifrost/gatekeeper/history"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/simrack"
)

// ServeConfig is what a rack to look at can be told.
type ServeConfig struct {
	// Address is where the admin API and page are served: HOST:PORT.
	Address string
	// Token protects it; "" draws one.
	Token string
	// Version of the program, for people.
	Version string
	// Out receives the page's address when the rack works.
	Out io.Writer
}

// page is the address of the page, with its token.
func page(address net.Addr, token string) string {
	return fmt.Sprintf("http://%s/#token=%s", address, token)
}

// busyRack is larger than the thesis's, so that there is something to look at.
var busyRack = []simrack.Blade{
	{Name: "c1", Kind: control.Compute}, {Name: "c2", Kind: control.Compute},
	{Name: "s1", Kind: control.Compute}, {Name: "s2", Kind: control.Compute}, {Name: "s3", Kind: control.Compute},
	{Name: "m1", Kind: control.Memory, Capacity: 16 << 20}, {Name: "m2", Kind: control.Memory, Capacity: 16 << 20}, {Name: "m3", Kind: control.Memory, Capacity: 16 << 20},
}

// Serve keeps a rack in this process busy, with its page served, until ctx ends.
// Every result is checked; a wrong one ends it.
func Serve(ctx context.Context, cfg ServeConfig) (err error) {
	if cfg.Token == "" {
		cfg.Token = admin.NewToken()
	}
	listener, err := admin.Listen(cfg.Address, nil)
	if err != nil {
		return err
	}
	rack, err := simrack.Start(ctx, simrack.Config{Blades: busyRack, ShareExports: true})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	defer func() { err = errors.Join(err, rack.Close()) }()
	past := history.New("", slog.New(slog.DiscardHandler))
	server, err := admin.New(admin.Config{Backend: rack.Gatekeeper(), History: past, Grants: admin.OneToken(cfg.Token), Version: cfg.Version, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return server.Run(running, listener) })
	g.Go(func() error { past.Run(running, rack.Gatekeeper()); return nil })
	g.Go(func() error { return traffic(running, rack) })
	fmt.Fprintf(cfg.Out, "a rack is at work; watch it at\n\n  %s\n\nuntil Ctrl-C\n", page(listener.Addr(), cfg.Token))
	if err := g.Wait(); ctx.Err() == nil {
		return err
	}
	return nil
}
