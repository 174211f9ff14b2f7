package metrics

import (
	"context"
	"fmt"
	"net"
	"net/http"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Read asks the process whose metrics are served at a Unix socket, and returns its counters and
// gauges by their names. Those with labels have these behind the name: name{a="x",b="y"}.
func Read(ctx context.Context, socket string) (map[string]float64, error) {
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://unix/metrics", nil)
	if err != nil {
		return nil, err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("metrics at %s: %w", socket, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("metrics at %s: %s", socket, resp.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("metrics at %s: %w", socket, err)
	}
	values := make(map[string]float64)
	for name, f := range families {
		for _, m := range f.GetMetric() {
			key, before := name, "{"
			for _, l := range m.GetLabel() {
				key += fmt.Sprintf("%s%s=%q", before, l.GetName(), l.GetValue())
				before = ","
			}
			if before == "," {
				key += "}"
			}
			values[key] = m.GetGauge().GetValue() + m.GetCounter().GetValue() // it has one of them
		}
	}
	return values, nil
}
