package admin

import (
	"context"
	"io"
	"net/http"
)

// openapi serves the OpenAPI document.
func (s *Server) openapi(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/openapi+json")
	_, _ = w.Write(s.document)
}

// healthz tells whether the Gatekeeper's loop is alive.
func (s *Server) healthz(w http.ResponseWriter, r *http.Request) {
	s.health(w, r, func(bool) string { return "" })
}

// readyz tells whether the Gatekeeper is in charge of its switch.
func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	s.health(w, r, func(connected bool) string {
		if connected {
			return ""
		}
		return "the switch is not connected"
	})
}

// health answers 200, or 503 if the loop does not answer or wrong says what is.
func (s *Server) health(w http.ResponseWriter, r *http.Request, wrong func(connected bool) string) {
	ctx, cancel := context.WithTimeout(r.Context(), healthTimeout)
	defer cancel()
	connected, err := s.backend.Connected(ctx)
	detail := wrong(connected)
	if err != nil {
		detail = err.Error()
	}
	if detail != "" {
		newProblem(http.StatusServiceUnavailable, detail).write(w)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "ok\n")
}
