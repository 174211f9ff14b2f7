package main

import (
	"context"
	"sync"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/spans"
)

// exportSpans has calls exported as OpenTelemetry spans, if somebody wants that; the
// returned function does so until its context ends.
func exportSpans(ctx context.Context, endpoint string, cfg *gatekeeper.Config) (start func(context.Context, *sync.WaitGroup), err error) {
	if !spans.Wanted(endpoint) {
		return func(context.Context, *sync.WaitGroup) {}, nil
	}
	e, err := spans.New(ctx, endpoint, versionString(), cfg.Logger)
	if err != nil {
		return nil, err
	}
	cfg.Over = e.Over
	return func(ctx context.Context, wg *sync.WaitGroup) {
		cfg.Logger.Info("calls are exported as OpenTelemetry spans", "endpoint", endpoint)
		wg.Go(func() {
			if err := e.Run(ctx); err != nil {
				cfg.Logger.Warn("OpenTelemetry spans", "error", err)
			}
		})
	}, nil
}
