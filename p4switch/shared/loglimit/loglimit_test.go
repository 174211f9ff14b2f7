package loglimit

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// buffer is a log in memory.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// take returns the lines since the last time.
func (b *buffer) take() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.b.Reset()
	return strings.Split(strings.TrimSuffix(b.b.String(), "\n"), "\n")
}

func newLog() (*slog.Logger, *Handler, *buffer) {
	b := new(buffer)
	h := New(slog.NewTextHandler(b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	return slog.New(h), h, b
}

func TestKinds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log, _, b := newLog()
		for i := range 1000 {
			log.With("node", "a").Warn("lost", "call", i)
		}
		log.Error("lost")
		log.Warn("gone")
		for range 2 * Lines {
			log.Info("lost")
		}
		lines := b.take()
		if len(lines) != Lines+2+2*Lines || lines[Lines-1] != fmt.Sprintf("level=WARN msg=lost node=a call=%d", Lines-1) || lines[Lines] != "level=ERROR msg=lost" {
			t.Errorf("%d lines:\n%s", len(lines), strings.Join(lines, "\n"))
		}
		<-time.After(Interval)
		synctest.Wait()
		if lines, want := b.take(), fmt.Sprintf("level=WARN msg=lost node=a call=999 alike=%d", 1000-Lines); len(lines) != 1 || lines[0] != want {
			t.Errorf("at the end of the interval %q, want %s", lines, want)
		}
		<-time.After(Interval)
		for range Lines {
			log.Warn("lost")
		}
		if lines := b.take(); len(lines) != Lines {
			t.Errorf("in another interval %q", lines)
		}
		<-time.After(Interval)
		synctest.Wait()
		if lines := b.take(); len(lines) != 1 || lines[0] != "" {
			t.Errorf("nothing was left out, and yet: %q", lines)
		}
	})
}

func TestFlush(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log, h, b := newLog()
		for range Lines + 3 {
			log.Warn("lost")
		}
		h.Flush()
		if lines := b.take(); len(lines) != Lines+1 || lines[Lines] != "level=WARN msg=lost alike=3" {
			t.Errorf("%q", lines)
		}
		<-time.After(2 * Interval)
		synctest.Wait()
		if lines := b.take(); len(lines) != 1 || lines[0] != "" {
			t.Errorf("after that %q", lines)
		}
	})
}
