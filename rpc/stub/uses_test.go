package stub

import (
	"fmt"
	"testing"

	"github.com/bifrost-rack/bifrost/rpc/internal/bridge"
)

// TestUses: an answer says of each of the first 16 arguments what a region of it would spare, in the numbers that clients/python uses, too (test_learned.py).
func TestUses(t *testing.T) {
	told := bridge.Spares
	defer func() { bridge.Spares = told }()
	bridge.Spares = func(ref any) int { return ref.(int) }
	many := func(last ...any) []any {
		all := make([]any, 15, 17)
		for i := range all {
			all[i] = -1
		}
		return append(all, last...)
	}
	for _, c := range []struct {
		spares []any
		number Uses
		heard  string
	}{
		{nil, 0, "[]"},
		{[]any{-1, -1}, 0, "[-1 -1]"},
		{[]any{2}, 3, "[2]"},
		{[]any{-1, 14, 0}, 0x1f0, "[-1 14 0]"},
		{many(14), -1 << 60, fmt.Sprint(many(14))},
		{many(-1, 5), 0, fmt.Sprint(many(-1, -1))},
	} {
		var heard []any
		caller := Caller{bridge.Caller{Learn: func(_ bridge.Argument, spares int) { heard = append(heard, spares) }}}
		u := UsesOf(c.spares...)
		caller.Learn("method", u, make([]string, len(c.spares))...)
		if u != c.number || fmt.Sprint(heard) != c.heard {
			t.Errorf("%v are %#x, and %v when they are heard; want %#x, %s", c.spares, u, heard, c.number, c.heard)
		}
	}
}
