// Package packaging holds what packages of Bifröst install beside its binary: systemd
// units, Prometheus alerts and a Grafana dashboard. The Go code is for tests.
package packaging

import (
	"embed"
	"io/fs"
	"regexp"
	"slices"
)

//go:embed prometheus/bifrost.rules.yml grafana/bifrost.json
var monitoring embed.FS

// Metrics returns the names of Bifröst's metrics that the alerts and the dashboard use
// and that begin with prefix, sorted.
func Metrics(prefix string) ([]string, error) {
	name := regexp.MustCompile(`\b` + regexp.QuoteMeta(prefix) + `[a-z_]+`)
	var all []string
	err := fs.WalkDir(monitoring, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := monitoring.ReadFile(path)
		all = append(all, name.FindAllString(string(b), -1)...)
		return err
	})
	slices.Sort(all)
	return slices.Compact(all), err
}
