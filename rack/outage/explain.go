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

// explain prints what has happened from a death until an answer came, by its time after
// the death in milliseconds.
func (m *measurement) explain(ctx context.Context, began, until time.Time) error {
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
	slices.SortStableFunc(all, func(a, b happening) int { return cmp.Compare(a.at.UnixNano(), b.at.UnixNano()) })
	const margin = 5 * time.Millisecond
	for _, h := range all {
		if h.at.After(began.Add(-margin)) && h.at.Before(until.Add(margin)) {
			fmt.Fprintf(m.cfg.Out, "\t%8.2f  %s\n", float64(h.at.Sub(began).Microseconds())/1e3, h.what)
		}
	}
	return nil
}

// events are the Gatekeeper's latest but those of calls, of which timelines tell more.
func (m *measurement) events(ctx context.Context) (all []happening, err error) {
	events, err := m.admin.Recent(ctx, 0)
	for _, e := range events {
		if e.Call == "" {
			all = append(all, happening{e.Time, fmt.Sprintf("%s %s %s %s", e.Kind, e.Blade, e.Name, e.Message)})
		}
	}
	return all, err
}
