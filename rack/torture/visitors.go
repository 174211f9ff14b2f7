package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/rack/config"
)

// Anybody on the machine can connect to the admin API where it takes tokens. The visitors do, say nothing, and connect again when
// they are turned away. Meanwhile, whoever has a token must be answered.

const (
	idleVisitors = 300 // connections at a time; a Gatekeeper serves 256
	visitEvery   = 200 * time.Millisecond
)

// visitors is who connects to the admin API and has no token.
type visitors struct {
	t    *torture
	done map[string]int
}

// openAdmin has the rack serve its admin API with tokens, at a port of this machine that is free; close removes the token.
func openAdmin(c *config.Config) (closed func() error, err error) {
	l, err := net.Listen("tcp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0).String())
	if err != nil {
		return nil, err
	}
	c.Admin.Address = l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "torture") // mode 0700
	c.Admin.TokenFile = filepath.Join(dir, "token")
	return func() error { return os.RemoveAll(dir) }, err
}

// crowd holds connections until ctx ends.
func (v *visitors) crowd(ctx context.Context, at config.Admin) error {
	token, err := admin.ReadToken(at.TokenFile)
	if err != nil {
		return err
	}
	held := make([]net.Conn, idleVisitors)
	defer func() {
		for _, c := range held {
			if c != nil {
				_ = c.Close() // nothing is awaited there
			}
		}
	}()
	for next := 0; ctx.Err() == nil; {
		for range held {
			if c := held[next]; c != nil {
				_ = c.Close()
			}
			if held[next], err = net.Dial("tcp", at.Address); err != nil {
				return fmt.Errorf("a visitor of the admin API: %w", err)
			}
			v.done["idle connection to the admin API"]++
			next = (next + 1) % len(held)
		}
		if err := v.answered(ctx, at.Address, token); err != nil && ctx.Err() == nil {
			return fmt.Errorf("beside %d idle connections, who has a token is not answered: %w", len(held), err)
		}
		if err := v.answered(ctx, at.Address, admin.NewToken()); !client.IsUnauthorized(err) && ctx.Err() == nil {
			return fmt.Errorf("a made-up token: %w", errors.Join(errAdmitted, err))
		}
		select {
		case <-time.After(visitEvery):
		case <-ctx.Done():
		}
	}
	return nil
}

// answered asks something with a token, on a connection of its own.
func (v *visitors) answered(ctx context.Context, address, token string) error {
	ctx, cancel := context.WithTimeout(ctx, honestWait)
	defer cancel()
	c, err := client.New(client.Config{Address: address, Token: token})
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Blades(ctx)
	v.done["request with a token"]++
	return err
}
