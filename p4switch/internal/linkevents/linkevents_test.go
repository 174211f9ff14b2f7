//go:build linux

package linkevents

import (
	"log/slog"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/compare"
	"github.com/vishvananda/netlink"
)

// Whoever watches hears of an interface that comes, changes and goes.
func TestWatch(t *testing.T) {
	compare.Namespace(t)
	heard := make(chan Link, 1000)
	w, err := Open(func(l Link) { heard <- l }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	expect := func(what string, do func() error) {
		t.Helper()
		for len(heard) > 0 {
			<-heard
		}
		if err := do(); err != nil {
			t.Fatal(what, err)
		}
		for deadline := time.After(compare.Patience); ; {
			select {
			case l := <-heard:
				if l.Is("watched", -1) && l.Index > 0 && !l.Is("other", l.Index+1) && l.Is("other", l.Index) {
					return
				}
			case <-deadline:
				t.Fatalf("nobody heard that it was %s", what)
			}
		}
	}
	l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "watched"}, PeerName: "peer"}
	expect("made", func() error { return netlink.LinkAdd(l) })
	expect("set up", func() error { return netlink.LinkSetUp(l) })
	expect("changed", func() error { return netlink.LinkSetMTU(l, 1400) })
	expect("deleted", func() error { return netlink.LinkDel(l) })
	w.Close()
}

// Events that find no room are lost, and whoever watches hears that anything may have changed.
func TestWatch_Lost(t *testing.T) {
	compare.Namespace(t)
	all, goOn := make(chan struct{}), make(chan struct{})
	once := false
	w, err := Open(func(l Link) {
		if (l == Link{}) && !once {
			once = true
			close(all)
		}
		<-goOn
	}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	d := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "watched"}, PeerName: "peer"}
	if err := netlink.LinkAdd(d); err != nil {
		t.Fatal(err)
	}
	for i := range 2 * buffer / 1024 {
		if err := netlink.LinkSetMTU(d, 1400+i%2); err != nil {
			t.Fatal(err)
		}
	}
	close(goOn)
	select {
	case <-all:
	case <-time.After(compare.Patience):
		t.Error("lost events are not told")
	}
}
