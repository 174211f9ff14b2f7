package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

// newHuma returns what describes and serves the operations on mux. It adds nothing
// of its own: no document, no page, no links.
func newHuma(mux *http.ServeMux) huma.API {
	cfg := huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "Bifröst Gatekeeper", Version: "1.0", Contact: &huma.Contact{Name: "Bifröst", URL: "https://github.com/bifrost-rack/bifrost/issues"}, License: &huma.License{Name: "Apache-2.0", Identifier: "Apache-2.0"},
				Description: "What is on a rack, who may do what with its memory, which calls are under way, and what happens. " +
					"Within v1, fields and kinds of events are added, never removed: ignore what you do not know.",
			},
			Servers: []*huma.Server{{URL: "/", Description: "The Gatekeeper that serves this document"}},
			Tags: []*huma.Tag{
				{Name: "Rack", Description: "Blades, memory machines, nodes and services."},
				{Name: "Work", Description: "Regions, calls, rules and denied accesses."},
				{Name: "Questions", Description: "Who waits for whom, who holds a pointer, what fails with a blade."},
				{Name: "Events", Description: "What happens on the rack, as it happens."},
				{Name: "Deployments", Description: "The apps that were deployed, and how they do."},
				{Name: "Policies", Description: "What becomes of calls when a node fails."},
				{Name: "Actions", Description: "What operators do. The role of a token says which of them it may ask for."},
			},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", huma.DefaultSchemaNamer),
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"token": {Type: "http", Scheme: "bearer", Description: "The admin token. Not needed on a Unix socket."},
				},
			},
			Security: []map[string][]string{{"token": {}}},
		},
		Formats: huma.DefaultFormats, DefaultFormat: "application/json", RejectUnknownQueryParameters: true,
	}
	cfg.AllowAdditionalPropertiesByDefault = true // of answers; requests say that they allow none
	return humago.New(mux, cfg)
}

// operation describes one; every operation may be refused for want of the token, and
// fail because the Gatekeeper ends.
func operation(method, path, id, tag, summary string) huma.Operation {
	need := needs(&http.Request{Method: method, URL: &url.URL{Path: path}})
	description := fmt.Sprintf("Needs a token with the role `%s` or more, or the Unix socket.", need)
	if method != http.MethodGet {
		description += " The Gatekeeper logs the request as `audit`, with the token's name."
	}
	return huma.Operation{
		OperationID: id, Method: method, Path: path, Tags: []string{tag}, Summary: summary, Description: description, MaxBodyBytes: maxBody,
		Errors: []int{http.StatusUnauthorized, http.StatusUnprocessableEntity, http.StatusServiceUnavailable, http.StatusGatewayTimeout},
	}
}

// body is an answer with nothing but a body.
type body[T any] struct{ Body T }

// none is the input of operations without parameters.
type none struct{}

// serve registers an operation. f has backendTimeout for its answer.
func serve[I, O any](h huma.API, op huma.Operation, f func(ctx context.Context, in *I) (O, error)) {
	huma.Register(h, op, func(ctx context.Context, in *I) (*body[O], error) {
		ctx, cancel := context.WithTimeout(ctx, backendTimeout)
		defer cancel()
		out, err := f(ctx, in)
		if err != nil {
			return nil, failed(err)
		}
		return &body[O]{out}, nil
	})
}

// get registers an operation that changes nothing.
func get[I, O any](h huma.API, path, id, tag, summary string, f func(ctx context.Context, in *I) (O, error), errors ...int) {
	op := operation(http.MethodGet, path, id, tag, summary)
	op.Errors = append(op.Errors, errors...)
	serve(h, op, f)
}

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }
