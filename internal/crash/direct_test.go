package crash

import "testing"

// TestDirectCalls: exactly-once calls that go straight to their callees are recovered from
// ledgers, whatever fails; see TestCrashEverywhere, which runs others with
// -crash.rack=pairs,long,lends.
func TestDirectCalls(t *testing.T) {
	rack, sum := *flagRack, new(tally)
	*flagRack = "pairs,long,lends"
	t.Cleanup(func() { *flagRack = rack })
	batch(t, 400, 40, 4, func(uint64) bool { return false }, sum)
	t.Logf("%d cases, %d failed%s", sum.cases, sum.failed, sum.table())
	for _, what := range []string{"direct calls", "direct calls that lend memory", "direct calls resumed", "direct calls answered again", "direct calls and answers in parts", "one-ways that went direct", "direct one-ways that hand memory over", "one-ways that left with a done", "regions allocated by direct executions", "regions freed at the end of direct executions"} {
		if sum.seen[what] == 0 {
			t.Errorf("there are no %s", what)
		}
	}
}
