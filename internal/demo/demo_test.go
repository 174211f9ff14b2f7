package demo

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestDemo runs the demo as a user would and holds its story against its report.
func TestDemo(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	report, err := Run(ctx, Config{Out: &out})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if !report.OK || report.Calls < 20 || report.Held < 50 || report.Rules < 50 || report.Denied < 4 || report.Executions != 1 {
		t.Errorf("report %+v", report)
	}
	story := out.String()
	for _, want := range []string{
		"the switch holds c1's call of Arrays.addRef", "revokes c1: write+free a", "grants s2: read a",
		"permission denied", "every byte is right", "s2 loses its power", "effect once",
	} {
		if !strings.Contains(story, want) {
			t.Errorf("the story does not say %q:\n%s", want, story)
		}
	}
	if revoke, grant := strings.Index(story, "revokes c1: write+free a"), strings.Index(story, "grants s2: read a"); revoke > grant {
		t.Error("the callee was granted before the caller was revoked")
	}
}
