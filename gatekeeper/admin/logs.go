package admin

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/suggest"
)

type logsInput struct {
	Program string    `query:"program" maxLength:"200" doc:"APP, APP/PROGRAM or APP/PROGRAM/NUMBER; all programs if absent" example:"shop/arrays"`
	Since   time.Time `query:"since" doc:"Only lines that were printed then or later"`
	Last    int       `query:"last" minimum:"0" maximum:"1000" doc:"Only so many of the latest lines; without since and cursor"`
	Cursor  string    `query:"cursor" maxLength:"65536" doc:"Where to go on: next of the answer before"`
}

// registerLogs serves what programs print.
func (s *Server) registerLogs(h huma.API) {
	get(h, "/v1/logs", "list-logs", "Deployments", "What programs have printed, on whichever blades, oldest first", s.logs, http.StatusBadRequest, http.StatusNotFound)
}

func (s *Server) logs(ctx context.Context, in *logsInput) (out api.Logs, err error) {
	q := gatekeeper.OutputQuery{Program: strings.Trim(in.Program, "/"), Last: in.Last}
	switch {
	case in.Last > 0 && (in.Cursor != "" || !in.Since.IsZero()):
		return out, newProblem(http.StatusBadRequest, "last goes with neither cursor nor since")
	case in.Cursor != "":
		if q.From, err = gatekeeper.ParseOutputPosition(in.Cursor); err != nil {
			return out, badCursor(err)
		}
	case !in.Since.IsZero():
		q.From = gatekeeper.OutputSince(in.Since)
	case in.Last > 0: // blades that join later have printed nothing before
		q.From = gatekeeper.OutputSince(time.Now())
	}
	page, err := s.backend.Output(ctx, q)
	if err != nil {
		return out, err
	}
	if len(page.Lines) == 0 && in.Cursor == "" {
		if err := s.knownProgram(ctx, q.Program); err != nil {
			return out, err
		}
	}
	out = api.Logs{Next: page.Next.String(), More: page.More, Silent: page.Silent, Dropped: page.Dropped}
	out.Items = each(page.Lines, func(l *gatekeeper.OutputLine) api.LogLine {
		return api.LogLine{Time: l.Time, Blade: l.Blade, Program: l.Program, Text: l.Text}
	})
	return out, nil
}

// knownProgram refuses a name that no deployment, program or instance has.
func (s *Server) knownProgram(ctx context.Context, name string) error {
	all, err := s.backend.Deployments(ctx)
	if err != nil {
		return err
	}
	var names []string
	for _, d := range all {
		names = append(names, d.Spec.Name)
		names = append(names, each(d.Spec.Programs, func(p *resources.Program) string { return d.Spec.Name + "/" + p.Name })...)
		names = append(names, each(d.Instances, func(i *resources.Instance) string { return i.Name })...)
	}
	if name == "" || slices.Contains(names, name) {
		return nil
	}
	return newProblem(http.StatusNotFound, fmt.Sprintf("nothing is deployed as %s, and no blade has output of it%s", name, suggest.Text(name, names)))
}
