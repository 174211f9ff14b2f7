package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestRefusals(t *testing.T) {
	c := Refusals("test_refused_total", "Help.", "user",
		func(each func(owner, what string, n uint64)) { each("1000", "nodes", 3); each("other", "nodes", 1) },
		func(each func(owner, what string, n uint64)) { each("1000", "bytes", 2) })
	want := `# HELP test_refused_total Help.
# TYPE test_refused_total counter
test_refused_total{user="1000",what="bytes"} 2
test_refused_total{user="1000",what="nodes"} 3
test_refused_total{user="other",what="nodes"} 1
`
	if err := testutil.CollectAndCompare(c, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
