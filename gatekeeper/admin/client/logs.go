package client

import (
	"context"
	"strconv"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
)

// LogFilter says which lines are wanted: the Last ones, or those from Since on, or those
// behind a Cursor, which is Next of the answer before. Only one of the three may be set.
type LogFilter struct {
	Program string // APP, APP/PROGRAM or APP/PROGRAM/NUMBER
	Last    int
	Since   time.Time
	Cursor  string
}

// Logs returns a part of what programs have printed, on whichever blades.
func (c *Client) Logs(ctx context.Context, f LogFilter) (api.Logs, error) {
	q := values("program", f.Program, "cursor", f.Cursor)
	if f.Last > 0 {
		q.Set("last", strconv.Itoa(f.Last))
	}
	if !f.Since.IsZero() {
		q.Set("since", f.Since.UTC().Format(time.RFC3339Nano))
	}
	return get[api.Logs](ctx, c, "/v1/logs", q)
}
