package admin

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// problem is an error response (RFC 9457), as huma wants it.
type problem struct{ api.Problem }

// huma makes its own errors, such as those about parameters, by this variable.
func init() {
	huma.NewError = func(status int, detail string, errs ...error) huma.StatusError {
		return newProblem(status, detail, errs...)
	}
	huma.DefaultArrayNullable = false // lists are never null
}

func newProblem(status int, detail string, errs ...error) *problem {
	p := &problem{api.Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}}
	for _, err := range errs {
		var d *huma.ErrorDetail
		switch {
		case errors.As(err, &d):
			p.Errors = append(p.Errors, api.Mistake{Message: d.Message, Location: d.Location})
		case err != nil:
			p.Errors = append(p.Errors, api.Mistake{Message: err.Error()})
		}
	}
	return p
}

// Error, GetStatus and ContentType are what huma asks of an error.
func (p *problem) Error() string { return p.Problem.Error() }

// GetStatus is the HTTP status.
func (p *problem) GetStatus() int { return p.Status }

// ContentType is the media type of the body.
func (p *problem) ContentType(string) string { return "application/problem+json" }

// write sends the problem.
func (p *problem) write(w http.ResponseWriter) {
	h := w.Header()
	h.Set("Content-Type", p.ContentType(""))
	h.Set("Cache-Control", "no-store")
	h.Del("Content-Length")
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p.Problem) // the client is gone: nobody to tell
}

// Fail answers a request with a problem document.
func Fail(w http.ResponseWriter, status int, detail string) { newProblem(status, detail).write(w) }

// statuses maps the Gatekeeper's codes to HTTP's.
var statuses = map[fault.Code]int{
	fault.PermissionDenied: http.StatusForbidden,
	fault.Deadline:         http.StatusGatewayTimeout,
	fault.Canceled:         http.StatusServiceUnavailable,
	fault.Overloaded:       http.StatusConflict,
	fault.Unavailable:      http.StatusConflict,
	fault.BadRequest:       http.StatusBadRequest,
	fault.NotFound:         http.StatusNotFound,
	fault.NoSpace:          http.StatusInsufficientStorage,
	fault.Unsupported:      http.StatusNotImplemented,
}

// failed turns an error of the Gatekeeper into a response.
func failed(err error) error {
	var p *problem
	switch {
	case err == nil:
		return nil
	case errors.As(err, &p):
		return p
	case errors.Is(err, gatekeeper.ErrStopped), errors.Is(err, gatekeeper.ErrNoSwitch):
		return newProblem(http.StatusServiceUnavailable, err.Error())
	case errors.Is(err, context.Canceled):
		return newProblem(http.StatusServiceUnavailable, "the server ends")
	case errors.Is(err, context.DeadlineExceeded):
		return newProblem(http.StatusGatewayTimeout, "the Gatekeeper did not answer in time")
	}
	var f *fault.Error
	if errors.As(err, &f) {
		if status, ok := statuses[f.Code]; ok {
			return newProblem(status, f.Msg)
		}
	}
	return newProblem(http.StatusInternalServerError, err.Error())
}
