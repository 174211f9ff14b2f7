package outage

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
)

// happening is something that the Gatekeeper remembers.
type happening struct {
	at   time.Time
	what string
}

// explain prints what has happened from a death until an answer, by its time after the
// death in milliseconds.
func (m *measurement) explain(ctx context.Context, death, answer time.Time) error {
	all, err := m.events(ctx)
	if err != nil {
		return err
	}
	for t, err := range m.admin.Timelines(ctx, client.TimelineFilter{}) {
		if err != nil {
			return err
		}
		for _, s := range t.Steps {
			all = append(all, happening{s.Time, fmt.Sprintf("call %.8s %s, attempt %d", t.ID, s.Kind, s.Attempt)})
		}
	}
	all = append(all, happening{death, "death"}, happening{answer, "the client gets an answer"})
	slices.SortStableFunc(all, func(a, b happening) int { return cmp.Compare(a.at.UnixNano(), b.at.UnixNano()) })
	const margin = 5 * time.Millisecond
	for _, h := range all {
		if h.at.After(death.Add(-margin)) && h.at.Before(answer.Add(margin)) {
			fmt.Fprintf(m.cfg.Out, "\t%8.2f  %s\n", float64(h.at.Sub(death).Microseconds())/1e3, h.what)
		}
	}
	return nil
}

// events are the Gatekeeper's latest of nodes and programs.
func (m *measurement) events(ctx context.Context) (all []happening, err error) {
	events, err := m.admin.Recent(ctx, recent, client.EventFilter{Kinds: kinds})
	for _, e := range events {
		all = append(all, happening{e.Time, fmt.Sprintf("%s %s %s %s", e.Kind, e.Blade, e.Name, e.Message)})
	}
	return all, err
}

// recent is how many events the Gatekeeper is asked for.
const recent = 1000

// kinds are those events.
var kinds = []string{
	"blade.failed", "program.started", "program.failed", "node.failed", "node.fenced", "node.joined", "node.recovered",
	"service.exported", "switch.lost", "switch.connected",
}
