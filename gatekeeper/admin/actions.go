package admin

import (
	"context"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
)

type causeInput struct {
	NameInput
	Body *api.Cause
}

// registerActions serves what people do to the rack.
func (s *Server) registerActions(h huma.API) {
	act(h, http.MethodPost, "/v1/blades/{name}/drain", "drain-blade", "Let a blade run empty: it takes nothing new, deployed programs move elsewhere", s.drain)
	act(h, http.MethodPost, "/v1/blades/{name}/fail", "fail-blade", "Take a blade out of service at once: its nodes are fenced, its memory is unavailable", s.fail)
	act(h, http.MethodPost, "/v1/blades/{name}/return", "return-blade", "Put a blade back into service after drain or fail", s.giveBack)
	act(h, http.MethodPost, "/v1/reconcile", "reconcile", "Read the switch's tables back and make them what they should be", s.reconcile)
}

// act registers an operation that changes the rack.
func act[I, O any](h huma.API, method, path, id, summary string, f func(ctx context.Context, in *I) (O, error)) {
	op := operation(method, path, id, "Actions", summary)
	op.Errors = append(op.Errors, http.StatusBadRequest, http.StatusNotFound, http.StatusConflict, http.StatusRequestEntityTooLarge)
	serve(h, op, f)
}

func (in *causeInput) cause() string {
	if in.Body == nil {
		return ""
	}
	return in.Body.Cause
}

func (s *Server) drain(ctx context.Context, in *causeInput) (api.Blade, error) {
	return s.operate(ctx, in.Name, s.backend.Drain(ctx, in.Name, or(in.cause(), "drained by an operator")))
}

func (s *Server) fail(ctx context.Context, in *causeInput) (api.Blade, error) {
	return s.operate(ctx, in.Name, s.backend.MarkFailed(ctx, in.Name, or(in.cause(), "marked failed by an operator")))
}

func (s *Server) giveBack(ctx context.Context, in *NameInput) (api.Blade, error) {
	return s.operate(ctx, in.Name, s.backend.ReturnToService(ctx, in.Name))
}

// operate returns a blade as it is after something was done to it.
func (s *Server) operate(ctx context.Context, blade string, err error) (api.Blade, error) {
	if err != nil {
		return api.Blade{}, err
	}
	return s.blade(ctx, &NameInput{Name: blade})
}

func (s *Server) reconcile(ctx context.Context, _ *none) (api.Reconciled, error) {
	n, err := s.backend.Reconcile(ctx)
	return api.Reconciled{Repaired: n}, err
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
