package demo

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"
)

// TestRollout rolls versions out under load as a user would, and holds the story against the
// report.
func TestRollout(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var out bytes.Buffer
	report, err := Rollout(ctx, &out)
	if err != nil || !report.OK || report.Calls != report.Counted || report.Calls < 300 || report.Former != "" {
		t.Fatalf("%+v, %v\n%s", report, err, out.String())
	}
	for _, want := range []string{"version 2 is deployed", "rolled back: nodes with these programs have failed 3 times, last ", "each was counted once"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the story does not say %q:\n%s", want, out.String())
		}
	}
	if testing.Verbose() {
		t.Logf("%+v\n%s", report, out.String())
	}
}
