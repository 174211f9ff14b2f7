package admin

import (
	"context"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// ServiceInput and MethodInput name what a policy is for. They are exported so that
// huma finds their fields.
type ServiceInput struct {
	Service string `path:"service" minLength:"1" maxLength:"255" doc:"The service's name" example:"Arrays"`
}

// MethodInput names a method.
type MethodInput struct {
	ServiceInput
	Method string `path:"method" minLength:"1" maxLength:"255" doc:"The method's name" example:"addRef"`
}

type setServicePolicy struct {
	ServiceInput
	Body api.SetPolicy
}

type setMethodPolicy struct {
	MethodInput
	Body api.SetPolicy
}

type policiesInput struct {
	ListInput
	Service string `query:"service" maxLength:"255" doc:"Only policies of this service"`
}

// registerPolicies serves what becomes of calls when nodes fail.
func (s *Server) registerPolicies(h huma.API) {
	get(h, "/v1/policies", "list-policies", "Policies", "What becomes of calls when nodes fail, by method: of all that are exported, and all that somebody has spoken of", s.policies)
	act(h, http.MethodPut, "/v1/policies/{service}", "set-service-policy", "Set the policy of all methods of a service for which no other is set",
		func(ctx context.Context, in *setServicePolicy) (api.Policy, error) {
			return s.say(ctx, in.Service, "", &in.Body)
		})
	act(h, http.MethodPut, "/v1/policies/{service}/{method}", "set-policy", "Set the policy of a method",
		func(ctx context.Context, in *setMethodPolicy) (api.Policy, error) {
			return s.say(ctx, in.Service, in.Method, &in.Body)
		})
	act(h, http.MethodDelete, "/v1/policies/{service}", "undo-service-policy", "Undo what was set for a service; the answer is what holds then",
		func(ctx context.Context, in *ServiceInput) (api.Policy, error) {
			return s.setPolicy(ctx, in.Service, "", resources.Word{})
		})
	act(h, http.MethodDelete, "/v1/policies/{service}/{method}", "undo-policy", "Undo what was set for a method; the answer is what holds then",
		func(ctx context.Context, in *MethodInput) (api.Policy, error) {
			return s.setPolicy(ctx, in.Service, in.Method, resources.Word{})
		})
}

func (s *Server) policies(ctx context.Context, in *policiesInput) (api.List[api.Policy], error) {
	all, err := s.backend.Policies(ctx)
	if in.Service != "" {
		all = slices.DeleteFunc(all, func(p resources.MethodPolicy) bool { return p.Service != in.Service })
	}
	return paged(&in.ListInput, each(all, policyOf), func(p *api.Policy) string { return methodName(p.Service, p.Method) }), err
}

// methodName is how a method is listed, or what is said of all methods of a service.
func methodName(service, method string) string {
	if method == "" {
		return service
	}
	return service + "." + method
}

// say sets what an operator says.
func (s *Server) say(ctx context.Context, service, method string, p *api.SetPolicy) (api.Policy, error) {
	w := resources.Word{Policy: p.Policy, MaxFailures: p.MaxFailures}
	if w == (resources.Word{}) {
		return api.Policy{}, fault.New(fault.BadRequest, "set policy", "the body says nothing: give policy, max_failures or both")
	}
	return s.setPolicy(ctx, service, method, w)
}

// setPolicy sets a policy, or with the zero word undoes it, and returns what holds now.
func (s *Server) setPolicy(ctx context.Context, service, method string, w resources.Word) (api.Policy, error) {
	if err := s.backend.SetPolicy(ctx, service, method, w); err != nil {
		return api.Policy{}, err
	}
	p, err := s.backend.Policy(ctx, service, method)
	return policyOf(&p), err
}

func policyOf(p *resources.MethodPolicy) api.Policy {
	return api.Policy{
		Service: p.Service, Method: p.Method, Policy: p.Policy.String(), Origin: string(p.Origin),
		MaxFailures: p.MaxFailures, FailuresOrigin: string(p.FailuresOrigin),
	}
}
