//go:build linux

// Package linkevents tells which network interfaces have changed, as the kernel says it, so that nobody has to look again and again.
package linkevents

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Link is an interface that has come, has changed or is gone: the name and the index that it has, or had. The zero Link stands for all interfaces:
// any of them may have changed, since events were lost.
type Link struct {
	Name  string
	Index int
}

// Is reports whether the event is about an interface that is called name, or was there with the index when somebody looked last.
func (l Link) Is(name string, index int) bool {
	return l == Link{} || l.Name == name || l.Index == index
}

// Watch is a source of events. Its methods may be called concurrently.
type Watch struct {
	events *nl.NetlinkSocket
	tell   func(Link)
	log    *slog.Logger
	closed atomic.Bool
	done   sync.WaitGroup
}

const (
	// buffer is how many bytes of events may wait; each has about 1.5 KiB.
	buffer = 1 << 20
	// maxFailed is after how many failures in a row events are given up.
	maxFailed = 100
)

// Open watches the interfaces of the caller's network namespace. A goroutine calls tell for all that changes from now on, one event after the other,
// until Close has returned. tell must not call Close. An event says only that there is news: whoever hears of it asks the kernel for the state, which may be newer.
func Open(tell func(Link), log *slog.Logger) (*Watch, error) {
	events, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
	if err != nil {
		return nil, fmt.Errorf("watch interfaces: %w", err)
	}
	if err := events.SetReceiveBufferSize(buffer, false); err != nil {
		events.Close()
		return nil, fmt.Errorf("watch interfaces: %w", err)
	}
	w := &Watch{events: events, tell: tell, log: log}
	w.done.Go(w.run)
	return w, nil
}

// Close ends it, and returns when tell is not called any more. It must be called once.
func (w *Watch) Close() {
	w.closed.Store(true)
	w.events.Close()
	w.done.Wait()
}

func (w *Watch) run() {
	for failed := 0; !w.closed.Load(); {
		ms, _, err := w.events.Receive()
		switch {
		case err == nil:
			failed = 0
		case w.closed.Load():
			return
		case failed == maxFailed:
			w.log.Error("interfaces are not watched any more", "error", err)
			return
		default: // some events found no room, or another process has sent to us
			failed++
			w.tell(Link{})
		}
		for i := range ms {
			w.event(&ms[i])
		}
	}
}

func (w *Watch) event(m *syscall.NetlinkMessage) {
	if m.Header.Type != unix.RTM_NEWLINK && m.Header.Type != unix.RTM_DELLINK {
		return
	}
	at, err := netlink.LinkDeserialize(nil, m.Data)
	if err != nil {
		w.log.Debug("link event", "error", err)
		return
	}
	w.tell(Link{at.Attrs().Name, at.Attrs().Index})
}
