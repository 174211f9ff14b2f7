// Package stages has the four stages of the example: what a shell writes as
//
//	tr -d '\r' | sort | uniq -c | sort -rn
//
// done by four services, none of which sees more of the text than it was lent.
//
//	client ──run──▶ Clean ──run──▶ Sort ──run──▶ Count ──run──▶ Rank
//	       ◀─────────────── the result, handed over, never copied ──┘
package stages

import (
	"context"
	"errors"
	"fmt"

	"github.com/bifrost-rack/bifrost/examples/pipeline/gen-go/pipeline"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Names are the services, in the order of the pipeline.
var Names = []string{"Clean", "Sort", "Count", "Rank"}

// Stage serves one stage. Its method may be called concurrently.
type Stage struct {
	work func(text []byte) ([]byte, error)
	next *pipeline.StageRefClient // nil for the last
}

var _ pipeline.StageRefHandler = (*Stage)(nil)

// Serve exports a stage, by name, on a node. It calls the next one through the
// same node.
func Serve(ctx context.Context, node *rpc.Node, name string) error {
	work, ok := works[name]
	if !ok {
		return fmt.Errorf("no stage %q: there are %v", name, Names)
	}
	s := &Stage{work: work}
	for i, n := range Names[:len(Names)-1] {
		if n == name {
			s.next = pipeline.OpenStage(node, Names[i+1])
		}
	}
	return pipeline.ExportStage(ctx, node, name, s)
}

// Run implements the service. What it was lent it may read and lend on; what the
// next stage returns is this one's, until it is handed to the caller.
func (s *Stage) Run(ctx context.Context, text *rpc.Ref[[]byte]) (*rpc.Ref[[]byte], error) {
	in, err := text.Load(ctx)
	if err != nil {
		return nil, err
	}
	out, err := s.work(in)
	if err != nil {
		return nil, err
	}
	if s.next == nil {
		return rpc.RefOf(out), nil
	}
	if out == nil {
		return s.next.Run(ctx, text) // nothing to change: pass on what was lent
	}
	made := rpc.RefOf(out)
	result, err := s.next.Run(ctx, made)
	if ferr := made.Free(ctx); err == nil && ferr != nil {
		return nil, errors.Join(ferr, result.Free(ctx))
	}
	return result, err
}
