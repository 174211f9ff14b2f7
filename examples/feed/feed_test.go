package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/bifrost-rack/bifrost/bifrosttest"
	"github.com/bifrost-rack/bifrost/examples/feed/gen-go/feed"
	"github.com/bifrost-rack/bifrost/examples/feed/timeline"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/gen"
)

// onRack runs f in virtual time beside a feed.
func onRack(t *testing.T, net bifrosttest.Network, s timeline.Service, f func(ctx context.Context, f *feed.FeedRefClient)) {
	t.Helper()
	bifrosttest.Run(t, bifrosttest.Config{Seed: 1, Network: net}, func(t *testing.T, r *bifrosttest.Rack) {
		s.Node = r.Node("s1", "feed")
		if err := feed.ExportFeed(r.Context(), s.Node, "Feed", &s); err != nil {
			t.Fatal(err)
		}
		f(r.Context(), feed.OpenFeed(r.Client(), "Feed"))
		if n := r.Regions(); n != 0 {
			t.Errorf("%d regions are left", n)
		}
	})
}

// TestPages: each page is what it should be, on a network that loses, doubles and reorders, too; pages beyond the end are
// short or empty.
func TestPages(t *testing.T) {
	for name, net := range map[string]bifrosttest.Network{"good": {}, "bad": bifrosttest.Bad} {
		t.Run(name, func(t *testing.T) {
			onRack(t, net, timeline.Service{Posts: 200, Picture: 5000}, func(ctx context.Context, f *feed.FeedRefClient) {
				list, err := f.Timeline(ctx)
				if err != nil {
					t.Fatal(err)
				}
				for _, page := range []struct{ from, count, want int }{{0, 10, 10}, {95, 10, 10}, {195, 10, 5}, {200, 1, 0}, {1000, 7, 0}, {3, 0, 0}} {
					lines, all, err := timeline.Page(ctx, list, page.from, page.count)
					if err != nil || len(lines) != page.want || all != 200 {
						t.Errorf("from %d on: %d lines of %d posts, %v; want %d", page.from, len(lines), all, err, page.want)
					}
					for i, l := range lines {
						if n := int64(200 - page.from - i); l.Number != n || l.Text == "" || l.Author == "" {
							t.Errorf("line %d from %d on: %+v, want post %d", i, page.from, l, n)
						}
					}
				}
				if err := list.Free(ctx); err != nil {
					t.Error(err)
				}
				if _, _, err := timeline.Page(ctx, list, 0, 1); rpc.CodeOf(err) != rpc.BadRequest {
					t.Errorf("a page of a list that is freed: %v", err)
				}
			})
		})
	}
}

// TestEmptyFeed: a list without posts has no pages.
func TestEmptyFeed(t *testing.T) {
	onRack(t, bifrosttest.Network{}, timeline.Service{}, func(ctx context.Context, f *feed.FeedRefClient) {
		list, err := f.Timeline(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if lines, all, err := timeline.Page(ctx, list, 0, 10); len(lines) != 0 || all != 0 || err != nil {
			t.Errorf("%d lines of %d posts, %v", len(lines), all, err)
		}
		if err := list.Free(ctx); err != nil {
			t.Error(err)
		}
	})
}

// TestStubsAreFresh holds the committed stubs against the generator.
func TestStubsAreFresh(t *testing.T) {
	files, err := gen.Generate("feed.thrift", os.ReadFile, gen.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		have, err := os.ReadFile(filepath.Join("gen-go", f.Name))
		if err != nil || !bytes.Equal(have, f.Content) {
			t.Errorf("%s is stale: go generate ./examples/feed (%v)", f.Name, err)
		}
	}
}
