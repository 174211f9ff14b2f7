package trace

import (
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// Each part of a query selects by itself.
func TestQuery(t *testing.T) {
	r := New(10, nil)
	end := func(n, ms int, code fault.Code, attempt uint16) {
		e := event(n, Answered, ms)
		e.Code, e.Attempt = code, attempt
		r.Note(e)
	}
	for n := 1; n <= 4; n++ {
		e := sent(n, 0, 100*n)
		if n == 4 {
			e.Caller.Address, e.Service = rackaddr.Node(7), "T"
		}
		r.Note(e)
	}
	end(1, 110, fault.OK, 0)
	end(2, 250, fault.Unavailable, 0)
	end(3, 310, fault.OK, 2)
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	for name, tc := range map[string]struct {
		q    Query
		want []int
	}{
		"all":               {Query{}, []int{4, 3, 2, 1}},
		"a caller":          {Query{Caller: rackaddr.Node(7)}, []int{4}},
		"a callee is none":  {Query{Caller: rackaddr.Node(2)}, nil},
		"a service":         {Query{Service: "T"}, []int{4}},
		"a method":          {Query{Method: "m2"}, []int{2}},
		"failed":            {Query{Failed: true}, []int{3, 2}},
		"run again":         {Query{Rerun: true}, []int{3}},
		"ended well":        {Query{HasCode: true}, []int{3, 1}},
		"ended with a code": {Query{HasCode: true, Code: fault.Unavailable}, []int{2}},
		"longer":            {Query{Longer: 50 * time.Millisecond, Now: at(420)}, []int{2}},
		"under way, longer": {Query{Longer: 50 * time.Millisecond, Now: at(450)}, []int{4, 2}},
		"since":             {Query{Since: at(300)}, []int{4, 3}},
		"until":             {Query{Until: at(300)}, []int{2, 1}},
		"a time":            {Query{Since: at(200), Until: at(300)}, []int{2}},
	} {
		tc.q.Limit = 10
		page, _ := r.Recent(tc.q, 100)
		ok := len(page) == len(tc.want)
		for i := 0; ok && i < len(page); i++ {
			ok = page[i].ID == id(tc.want[i])
		}
		if !ok {
			t.Errorf("%s: %d calls, want %v", name, len(page), tc.want)
		}
	}
}
