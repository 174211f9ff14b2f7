package admin

import (
	"fmt"
	"net/http"
	"strings"
)

// harden sets what every answer has: nothing may be guessed, framed, cached or
// loaded from elsewhere. The page sets a policy of its own.
func harden(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// problems answers what the mux has no handler for with a problem document.
func problems(mux *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, pattern := mux.Handler(r)
		if pattern != "" {
			mux.ServeHTTP(w, r)
			return
		}
		var a answer
		h.ServeHTTP(&a, r)
		if a.status < 400 { // sent on to the cleaned path, where there is nothing either
			a.status = http.StatusNotFound
		}
		p := newProblem(a.status, fmt.Sprintf("there is no %s", r.URL.Path))
		if allow := a.Header().Get("Allow"); allow != "" {
			w.Header().Set("Allow", allow)
			p.Detail = fmt.Sprintf("%s does not take %s but %s", r.URL.Path, r.Method, strings.ReplaceAll(allow, ", ", " or "))
		}
		p.write(w)
	})
}

// answer keeps the status and header that a handler writes.
type answer struct {
	header http.Header
	status int
}

// Header, WriteHeader and Write are http.ResponseWriter's.
func (a *answer) Header() http.Header {
	if a.header == nil {
		a.header = http.Header{}
	}
	return a.header
}

// WriteHeader keeps the status.
func (a *answer) WriteHeader(status int) { a.status = status }

// Write drops the body.
func (a *answer) Write(b []byte) (int, error) { return len(b), nil }
