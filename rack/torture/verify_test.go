package torture

import (
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/examples/counter/tally"
)

// Accounts must have what was acknowledged, and one call more at most. A client's error is wrong, unless its call
// was given up.
func TestJudge(t *testing.T) {
	const account = tellers
	for _, tt := range []struct {
		name    string
		client  plainClient
		total   int64
		want    string
		unknown int64
		givenUp int64
	}{
		{"all", plainClient{acknowledged: 3}, 3, "", 0, 0},
		{"one more", plainClient{acknowledged: 3}, 4, "", 1, 0},
		{"two more", plainClient{acknowledged: 3}, 5, "3 calls were acknowledged, 5 counted", 2, 0},
		{"one lost", plainClient{acknowledged: 3}, 2, "3 calls were acknowledged, 2 counted", -1, 0},
		{"an error", plainClient{acknowledged: 3, failure: "unavailable: nobody is there"}, 3, "nobody is there", 0, 0},
		{"given up", plainClient{acknowledged: 3, failure: "unavailable: " + gaveUp}, 4, "", 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var totals [tally.Accounts]int64
			for n := range tellers {
				totals[n] = tally.Sum((&tally.Teller{Account: int32(n)}).Amounts(0))
			}
			totals[account], tt.client.account = tt.total, account
			r := &torture{clients: []*plainClient{&tt.client}}
			err := r.judge(totals)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if r.report.Unknown != tt.unknown || r.report.GivenUp != tt.givenUp || r.report.Calls != tellers+tt.client.acknowledged {
				t.Errorf("%+v", r.report)
			}
		})
	}
}
