package ingress

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// figures are what an ingress counts.
type figures struct {
	requests *prometheus.CounterVec
	refused  *prometheus.CounterVec
	seconds  prometheus.Histogram
	keys     prometheus.GaugeFunc
	bytes    prometheus.GaugeFunc
	calls    prometheus.GaugeFunc
}

func newFigures(s *Server) *figures {
	gauge := func(name, help string, f func() float64) prometheus.GaugeFunc {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "bifrost", Subsystem: "ingress", Name: name, Help: help}, f)
	}
	f := &figures{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "bifrost", Subsystem: "ingress", Name: "requests_total", Help: "HTTP requests, by the service and method that they call and by status.",
		}, []string{"service", "method", "status"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: "bifrost", Subsystem: "ingress", Name: "refused_total", Help: "Requests that were refused for who made them: without a valid token, for a host that is not served, beyond the client's rate, or beyond its share of the calls under way.",
		}, []string{"reason"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "bifrost", Subsystem: "ingress", Name: "request_duration_seconds", Help: "How long requests took.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 30},
		}),
		keys:  gauge("keys", "Idempotency keys that are kept.", func() float64 { n, _ := s.keeper.figures(); return float64(n) }),
		bytes: gauge("key_bytes", "Bytes that idempotency keys and their answers take.", func() float64 { _, n := s.keeper.figures(); return float64(n) }),
		calls: gauge("calls", "Calls that are under way.", func() float64 { return float64(s.clients.calls()) }),
	}
	for _, reason := range []string{"token", "host", "rate", "concurrent"} {
		f.refused.WithLabelValues(reason)
	}
	return f
}

// Collectors are the ingress' figures for Prometheus.
func (s *Server) Collectors() []prometheus.Collector {
	f := s.figures
	return []prometheus.Collector{f.requests, f.refused, f.seconds, f.keys, f.bytes, f.calls}
}

// statusWriter remembers what was answered.
type statusWriter struct {
	http.ResponseWriter
	status int
	bytes  int
}

// WriteHeader remembers the status and sends it.
func (w *statusWriter) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write counts the bytes.
func (w *statusWriter) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += n
	return n, err
}

// Unwrap lets http.ResponseController through.
func (w *statusWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// observe counts and logs requests, and sets what every answer has.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		v := &visit{}
		h := w.Header()
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'")
		h.Set("Cache-Control", "no-store")
		sw := &statusWriter{ResponseWriter: w}
		next.ServeHTTP(sw, r.WithContext(context.WithValue(r.Context(), visitKey{}, v)))
		took := time.Since(start)
		s.figures.requests.WithLabelValues(v.service, v.method, strconv.Itoa(sw.status)).Inc()
		s.figures.seconds.Observe(took.Seconds())
		if v.reason != "" {
			s.figures.refused.WithLabelValues(v.reason).Inc()
		}
		s.log.Info("request", "client", v.client, "from", r.RemoteAddr, "method", r.Method, "path", r.URL.Path, "status", sw.status, "bytes", sw.bytes,
			"took", took.Round(time.Microsecond), "key", r.Header.Get("Idempotency-Key") != "", "refused", v.reason)
	})
}
