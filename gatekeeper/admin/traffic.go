package admin

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// traffic counts the API's own requests, by route and never by path.
type traffic struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	refused  *prometheus.CounterVec
}

func newTraffic(r prometheus.Registerer) *traffic {
	t := &traffic{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "http_requests_total", Help: "Requests to the admin API, by route and status.",
		}, []string{"route", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: namespace, Name: "http_request_duration_seconds", Help: "How long requests to the admin API took; event streams are not among them.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5},
		}, []string{"route"}),
	}
	t.refused = prometheus.NewCounterVec(prometheus.CounterOpts{
		Namespace: namespace, Name: "http_refused_total", Help: "Requests to the admin API that were refused: no token, unknown token, a role that is too small, or a token's share of connections; and connections without a token (stranger) that were closed for newer ones.",
	}, []string{"reason"})
	for _, reason := range []string{"no token", "unknown token", "role", "connections", "stranger"} {
		t.refused.WithLabelValues(reason)
	}
	r.MustRegister(t.requests, t.seconds, t.refused)
	return t
}

// count counts the requests to a mux.
func (t *traffic) count(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		sw := &statusWriter{ResponseWriter: w, status: http.StatusOK}
		next.ServeHTTP(sw, r)
		route := "other" // what the mux has no handler for, whatever it is called
		if _, path, ok := strings.Cut(r.Pattern, " "); ok {
			route = path
		}
		t.requests.WithLabelValues(route, strconv.Itoa(sw.status)).Inc()
		if route != "/v1/events" {
			t.seconds.WithLabelValues(route).Observe(time.Since(start).Seconds())
		}
	})
}

// statusWriter remembers the status.
type statusWriter struct {
	http.ResponseWriter
	status int
}

// WriteHeader remembers the status and sends it.
func (w *statusWriter) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController through.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
