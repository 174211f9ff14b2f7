package ingress

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/ingress/gen-go/durable"
	"github.com/bifrost-rack/bifrost/ingress/thriftjson"
	"github.com/bifrost-rack/bifrost/rpc"
)

// problem is an error as clients get it (RFC 9457).
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Code is that of the call's error, in words (rpc.Code).
	Code string `json:"code,omitempty"`
	// NeverBegan: the call certainly did not run, and will not.
	NeverBegan bool `json:"neverBegan,omitempty"`
	// Exception is one that the IDL declares.
	Exception *exception `json:"exception,omitempty"`
	// Errors are what is wrong with the request's body.
	Errors []mistake `json:"errors,omitempty"`

	retry int // seconds after which to try again; 0 for no word about that
}

type exception struct {
	Name   string          `json:"name"`
	Fields json.RawMessage `json:"fields"`
}

type mistake struct {
	Pointer  string `json:"pointer"`
	Expected string `json:"expected"`
	Found    string `json:"found"`
}

const (
	problemType   = "urn:bifrost:problem:"
	exceptionType = "urn:bifrost:exception:"

	jsonMedia    = "application/json"
	problemMedia = "application/problem+json"
)

// refusal makes a problem; the name is the last part of its type.
func refusal(status int, name, detail string) *problem {
	return &problem{Type: problemType + name, Title: http.StatusText(status), Status: status, Detail: detail}
}

// again says after how many seconds to come again.
func (p *problem) again(seconds int) *problem {
	p.retry = seconds
	return p
}

// outcome is the problem as it is kept.
func (p *problem) outcome() *durable.Outcome {
	b, err := json.Marshal(p)
	if err != nil {
		b = []byte("{}") // it has nothing that could not be written
	}
	return &durable.Outcome{Status: int32(p.Status), MediaType: problemMedia, Body: b} //nolint:gosec // a status
}

// write sends the problem.
func (p *problem) write(w http.ResponseWriter) {
	if p.retry > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(p.retry))
	}
	if p.Status == http.StatusRequestTimeout {
		w.Header().Set("Connection", "close")
	}
	writeOutcome(w, p.outcome())
}

// writeOutcome sends what a call has come to.
func writeOutcome(w http.ResponseWriter, o *durable.Outcome) {
	w.Header().Set("Content-Type", o.MediaType)
	w.Header().Set("Content-Length", strconv.Itoa(len(o.Body)))
	w.WriteHeader(int(o.Status))
	_, _ = w.Write(o.Body) // the client is gone: nobody to tell
}

// mismatch is what is wrong with a body.
func mismatch(err error) *problem {
	p := refusal(http.StatusBadRequest, "mismatch", err.Error())
	p.NeverBegan = true
	var m *thriftjson.Mismatch
	if errors.As(err, &m) {
		p.Errors = []mistake{{m.Pointer, m.Expected, m.Found}}
	}
	return p
}

// statuses are those of the errors of calls.
var statuses = map[rpc.Code]int{
	rpc.PermissionDenied: http.StatusForbidden, rpc.NoSuchMethod: http.StatusNotFound, rpc.Deadline: http.StatusGatewayTimeout,
	rpc.Canceled: http.StatusServiceUnavailable, rpc.Overloaded: http.StatusServiceUnavailable, rpc.Unavailable: http.StatusServiceUnavailable,
	rpc.BadRequest: http.StatusBadRequest, rpc.NotFound: http.StatusNotFound, rpc.NoSpace: http.StatusInsufficientStorage,
	rpc.Stale: http.StatusConflict, rpc.Unsupported: http.StatusNotImplemented,
}

// failed is the problem of a call that has failed, but for exceptions that the IDL declares.
func failed(err error) *problem {
	code := rpc.CodeOf(err)
	status, ok := statuses[code]
	if !ok {
		status = http.StatusInternalServerError
	}
	p := refusal(status, "call", err.Error())
	if p.Code = code.String(); code == rpc.Application {
		var app thrift.TApplicationException
		if errors.As(err, &app) {
			p.Detail = app.Error()
		}
	}
	if p.NeverBegan = rpc.NeverBegan(err); code == rpc.Overloaded || p.NeverBegan && code == rpc.Unavailable {
		p.retry = 1
	}
	return p
}

// declared is the problem of an exception that the IDL declares.
func declared(a *thriftjson.Answer) *problem {
	p := refusal(http.StatusUnprocessableEntity, "", "the service has raised the exception "+a.Exception)
	p.Type, p.Title, p.Code = exceptionType+a.Exception, a.Exception, rpc.Declared.String()
	p.Exception = &exception{a.Exception, a.JSON}
	return p
}

// tooLarge is kept in the place of an outcome for which there is no room.
var tooLarge = refusal(http.StatusInsufficientStorage, "not-kept",
	"the call has run, and its answer was too large to be kept beside those of other keys").outcome()

// internalProblem is for what should not happen.
func internalProblem(detail string) *problem {
	return refusal(http.StatusInternalServerError, "internal", detail)
}

// unreadable is for an answer that is no JSON: the call has run.
func unreadable(err error) *problem {
	return refusal(http.StatusBadGateway, "unreadable", "the call has run, and its answer cannot be told: "+err.Error())
}

var errWriteOnly = errors.New("arguments are only written")
