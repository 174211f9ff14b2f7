package checks

import (
	"bufio"
	"context"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/internal/demo"
)

// TestServe: the rack is busy, with right results, until it is told to stop; its page
// is where it is said to be.
func TestServe(t *testing.T) {
	if testing.Short() {
		t.Skip("a rack in real time")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		defer w.Close()
		ended <- demo.Serve(ctx, demo.ServeConfig{Address: "127.0.0.1:0", Out: w, Version: "v0"})
	}()
	address := pageAddress(t, r)
	c, err := client.New(client.Config{Address: "http://" + address.Host, Token: strings.TrimPrefix(address.Fragment, "token=")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	seen := map[string]int{}
	watching, enough := context.WithCancel(ctx)
	err = c.Follow(watching, client.FollowOptions{Replay: 100}, func(m client.Message) error {
		if m.Event != nil {
			seen[m.Event.Kind]++
		}
		if seen["access.denied"] > 0 && seen["node.joined"] > 0 {
			enough()
		}
		return nil
	})
	if ctx.Err() != nil {
		t.Fatalf("%v; seen %v", err, seen)
	}
	s, err := c.Status(ctx)
	if err != nil || s.Counts.Nodes == 0 || s.Version != "v0" {
		t.Errorf("status %+v, %v", s, err)
	}
	refusals(t, ctx, c)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// refusals expects that nothing but accesses was refused.
func refusals(t *testing.T, ctx context.Context, c *client.Client) {
	t.Helper()
	events, err := c.Recent(ctx, 4096, client.EventFilter{Kinds: []string{"call.refused", "blade.failed"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		t.Errorf("%s: %+v", e.Kind, e)
	}
}

// pageAddress reads what Serve prints.
func pageAddress(t *testing.T, r io.Reader) *url.URL {
	t.Helper()
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		text := strings.TrimSpace(lines.Text())
		if !strings.HasPrefix(text, "http://") {
			continue
		}
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		go io.Copy(io.Discard, r)
		return u
	}
	t.Fatal("no address is printed")
	return nil
}
