package history

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Bounds of what is kept.
const (
	// MaxAge is how old what is read back may be.
	MaxAge = 7 * 24 * time.Hour
	// maxMinutes bounds the minutes in memory: two days.
	maxMinutes = 2880
	// MaxEvents bounds the events of former runs, maxPending those that are written in a second.
	MaxEvents  = 1024
	maxPending = 256
	// maxWell and maxFailed bound the calls of former runs: those that went well, and the others.
	maxWell   = 4096
	maxFailed = 2048
)

const (
	// every is how often is written what is new.
	every = time.Second
	// saved is how often the figures of the minute that is under way are written.
	saved = 10 * time.Second
	// breath is after how many lines others have the processor, which a Gatekeeper has one of.
	breath = 16
)

// Source is where calls are asked for; *gatekeeper.Gatekeeper is one.
type Source interface {
	TakeEnded(ctx context.Context) (calls []trace.Call, missed uint64, err error)
	Totals(ctx context.Context) (trace.Totals, error)
}

// Minute is what happened in a minute, or in that part of it in which a Gatekeeper ran.
type Minute struct {
	Time time.Time `json:"time"` // its beginning
	// Run is when the Gatekeeper began that saw this.
	Run time.Time `json:"run"`
	// Calls is how many calls ended, Declared how many of them with an exception that the IDL declares, Failed with another one.
	Calls    uint64 `json:"calls"`
	Declared uint64 `json:"declared,omitempty"`
	Failed   uint64 `json:"failed,omitempty"`
	// P50 and P99 are how many seconds half and 99 % of them took at most; 0 without a call
	// whose duration is known.
	P50 float64 `json:"p50,omitempty"`
	P99 float64 `json:"p99,omitempty"`
}

// State says how much history there is.
type State struct {
	// Began is when this run of the Gatekeeper began. What is older was read from the files.
	Began time.Time
	// Since is when the oldest of the minutes began; zero if there is none.
	Since time.Time
	// Calls is how many calls of former runs there are.
	Calls int
	// Kept: it is written to files.
	Kept bool
	// Trouble is why it cannot be written at present; nil otherwise.
	Trouble error
	// Missed is how many calls and events were not written: more happened in a second than
	// is kept of one, or there was trouble.
	Missed uint64
}

// History is the history of one Gatekeeper. Its methods may be called concurrently.
type History struct {
	log   *slog.Logger
	files *files // nil: it is kept in memory only
	began time.Time
	read  chan struct{} // closed when the files of former runs have been read

	mu      sync.Mutex
	past    *trace.Recorder // calls of former runs
	events  []gatekeeper.Event
	minutes []Minute // the last one is under way, if it is of this run
	pending []gatekeeper.Event
	missed  uint64
}

// New makes the History of a directory; with "" it is kept in memory. Run makes it work: until
// then nothing is read or written. It does not fail: log says what cannot be read or written.
func New(directory string, log *slog.Logger) *History {
	h := &History{log: log, began: time.Now(), past: trace.New(maxWell+maxFailed, nil), read: make(chan struct{})}
	if directory != "" {
		h.files = newFiles(directory)
	}
	return h
}

// load reads what former runs have written.
func (h *History) load() {
	defer close(h.read)
	if h.files == nil {
		return
	}
	entries, err := h.files.read(h.began)
	if err != nil {
		h.log.Warn("a part of the history cannot be read, and is left out", "directory", h.files.directory, "error", err)
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return a.at.Compare(b.at) })
	var calls []trace.Call
	var well, failed int
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := len(entries) - 1; i >= 0; i-- { // the latest count
		switch e := &entries[i]; {
		case e.call != nil && e.call.Failed():
			if failed++; failed <= maxFailed {
				calls = append(calls, *e.call)
			}
		case e.call != nil:
			if well++; well <= maxWell {
				calls = append(calls, *e.call)
			}
		case e.event != nil && len(h.events) < MaxEvents:
			h.events = append(h.events, *e.event)
		}
	}
	slices.Reverse(calls)
	slices.Reverse(h.events)
	h.past.Restore(calls)
	now := h.minutes
	h.minutes = nil
	for i := range entries {
		if m := entries[i].minute; m != nil {
			h.put(*m)
		}
	}
	for _, m := range now {
		h.put(m)
	}
}

// put adds the figures of a minute, or replaces those of the same minute and run.
func (h *History) put(m Minute) {
	same := func(o Minute) bool { return o.Time.Equal(m.Time) && o.Run.Equal(m.Run) }
	if i := slices.IndexFunc(h.minutes[max(0, len(h.minutes)-2):], same); i >= 0 {
		h.minutes[max(0, len(h.minutes)-2)+i] = m
		return
	}
	if h.minutes = append(h.minutes, m); len(h.minutes) > maxMinutes {
		h.minutes = slices.Delete(h.minutes, 0, len(h.minutes)-maxMinutes)
	}
}

// Knows reports whether a call was over in a former run. What a Gatekeeper that goes on from its
// log knows of such a call is less: when it was released again, if it was.
func (h *History) Knows(id rpcpacket.ID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.past.Knows(id)
}

// Timeline is trace.Recorder.Tree of the calls of former runs.
func (h *History) Timeline(id rpcpacket.ID, limit int) (tree []trace.Leaf, more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.past.Tree(id, limit)
}

// Timelines is trace.Recorder.Recent of the calls of former runs.
func (h *History) Timelines(q trace.Query) (page []trace.Call, next uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.past.Recent(q, maxWell+maxFailed+1)
}

// Events waits until the files have been read, or ctx ends, and returns the events of former
// runs, the oldest first.
func (h *History) Events(ctx context.Context) []gatekeeper.Event {
	select {
	case <-ctx.Done():
		return nil
	case <-h.read:
		return h.events // nobody changes them any more
	}
}

// Minutes returns the figures of the last two days. There are two of a minute in which the
// Gatekeeper was restarted.
func (h *History) Minutes() []Minute {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.minutes)
}

// State says how much there is.
func (h *History) State() State {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := State{Began: h.began, Calls: h.past.Len(), Kept: h.files != nil, Missed: h.missed}
	if h.files != nil {
		s.Trouble = errors.Join(h.files.calls.trouble, h.files.failures.trouble, h.files.minutes.trouble)
	}
	if len(h.minutes) > 0 {
		s.Since = h.minutes[0].Time
	}
	return s
}

// kept are the beginnings of the kinds of events that are kept: what fails, and what
// operators do. There are many of the others, and calls are kept by themselves.
var kept = []string{"switch.", "blade.", "machine.", "app.", "policy.", "program.", "node.", "call.canceled", "access."}

// Note takes an event.
func (h *History) Note(e *gatekeeper.Event) {
	if h.files == nil || !slices.ContainsFunc(kept, func(k string) bool { return strings.HasPrefix(string(e.Kind), k) }) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.pending) >= maxPending {
		h.missed++
		return
	}
	h.pending = append(h.pending, *e)
}

// Run keeps up with a Gatekeeper until ctx ends, and then writes what is left. It reads the
// files of former runs after a second: a Gatekeeper that has just begun has to recover first. It
// must be called once.
func (h *History) Run(ctx context.Context, from Source) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	k := recorder{h: h, from: from}
	first := sync.OnceFunc(h.load)
	for {
		select {
		case <-ctx.Done():
			first()
			k.turn(context.WithoutCancel(ctx), time.Now(), true)
			h.files.close()
			return
		case <-tick.C:
			first()
			k.turn(ctx, time.Now(), false)
		}
	}
}

// recorder is what Run remembers from one turn to the next.
type recorder struct {
	h       *History
	from    Source
	minute  time.Time    // that is under way
	base    trace.Totals // at its beginning
	written Minute       // the last one that was written
	at      time.Time    // and when
}

// turn asks what is new, and writes it.
func (k *recorder) turn(ctx context.Context, now time.Time, last bool) {
	calls, missed, err := k.from.TakeEnded(ctx)
	var totals trace.Totals
	if err == nil {
		totals, err = k.from.Totals(ctx)
	}
	if err != nil && !errors.Is(err, gatekeeper.ErrStopped) {
		k.h.log.Debug("the history is not asked for", "error", err)
	}
	k.h.mu.Lock()
	k.h.missed += missed
	events := k.h.pending
	k.h.pending = nil
	k.h.mu.Unlock()
	var minutes []Minute
	if err == nil {
		minutes = k.figures(totals, now, last)
	}
	if k.h.files != nil {
		k.h.write(calls, events, minutes)
	}
}

// figures notes those of the minute, and returns what is to be written of it.
func (k *recorder) figures(totals trace.Totals, now time.Time, last bool) (write []Minute) {
	minute := now.Truncate(time.Minute)
	if k.minute.IsZero() {
		k.minute = minute
	}
	since := totals.Since(&k.base)
	m := Minute{Time: k.minute, Run: k.h.began, Calls: since.Calls, Declared: since.Declared, Failed: since.Failed}
	m.P50, _ = since.Quantile(0.5)
	m.P99, _ = since.Quantile(0.99)
	k.h.mu.Lock()
	k.h.put(m)
	k.h.mu.Unlock()
	over := minute != k.minute
	if over || m != k.written && (last || now.Sub(k.at) >= saved) {
		write, k.written, k.at = append(write, m), m, now
	}
	if over {
		k.minute, k.base = minute, totals
	}
	return write
}

// write writes what has happened.
func (h *History) write(calls []trace.Call, events []gatekeeper.Event, minutes []Minute) {
	var well, failures, figures batch
	for i := range calls {
		if calls[i].Failed() {
			failures.add(line{Call: written(&calls[i])})
		} else {
			well.add(line{Call: written(&calls[i])})
		}
	}
	for i := range events {
		failures.add(line{Event: &events[i]})
	}
	for i := range minutes {
		figures.add(line{Minute: &minutes[i]})
	}
	h.append(h.files.calls, &well)
	h.append(h.files.failures, &failures)
	h.append(h.files.minutes, &figures)
}

// append writes lines to a file, and notes why that is not possible, or is again.
func (h *History) append(f *file, b *batch) {
	if b.lines == 0 {
		return
	}
	err := f.write(b)
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err != nil && f.trouble == nil:
		h.log.Warn("the history cannot be written: what happens meanwhile will be missing in it", "error", err)
	case err == nil && f.trouble != nil:
		h.log.Info("the history is written again", "file", f.Path)
	}
	if f.trouble = err; err != nil && f != h.files.minutes {
		h.missed += uint64(b.lines) //nolint:gosec // not negative
	}
}

// batch are the lines of a file that are written together.
type batch struct {
	text  []byte
	lines int
}

// add adds a line. From time to time it lets others work.
func (b *batch) add(l line) {
	text, err := json.Marshal(l)
	if err != nil {
		return // a time beyond the year 9999: no other value of these types has no JSON
	}
	b.text = append(append(b.text, text...), '\n')
	if b.lines++; b.lines%breath == 0 {
		runtime.Gosched()
	}
}
