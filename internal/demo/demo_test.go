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
	if !report.OK || report.Calls < 20 || report.Held < 20 || report.Rules < 20 || report.Denied < 2 || report.Executions != 1 {
		t.Errorf("report %+v", report)
	}
	story := out.String()
	for _, want := range []string{
		"a is c1's; it is lent to s2, by the call in slot", "the sum is c1's; it is lent to nobody",
		"permission denied", "every byte is right", "s2 loses its power", "effect once",
	} {
		if !strings.Contains(story, want) {
			t.Errorf("the story does not say %q:\n%s", want, story)
		}
	}
}
