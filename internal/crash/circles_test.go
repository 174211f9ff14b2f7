package crash

import (
	"fmt"
	"testing"
	"time"
)

// circle is a program in which services with state call each other: each way is that of the calls of one client.
func circle(services int, ways ...[]int) *Program {
	p := &Program{Apart: true}
	for range services {
		p.Services = append(p.Services, Service{Stateful: true})
	}
	next := numbered()
	var along func(kind Kind, way []int) Op
	along = func(kind Kind, way []int) Op {
		ops := []Op{next(Op{Kind: Wait, Within: time.Millisecond}), next(Op{Kind: Add})}
		if len(way) > 1 {
			ops = append(ops, along(Risk, way[1:]))
		}
		ops = append(ops, next(Op{Kind: Add}), next(Op{Kind: Effect}))
		return next(Op{Kind: kind, Service: way[0], Slot: -1, Body: body(ops...)})
	}
	for i, way := range ways {
		p.Clients = append(p.Clients, Client{Main: i%2 == 1, Script: Script{Result: -1, Ops: []Op{along(Call, way), along(Call, way)}}})
	}
	return p
}

// TestCircles: services with state call each other. One of them, or the Gatekeeper, fails at each packet. It is said soon that
// they wait for each other, and only if they do.
func TestCircles(t *testing.T) {
	const soon = 2 * time.Second
	for i, p := range []*Program{
		circle(2, []int{0, 1, 0}),
		circle(2, []int{0, 1}, []int{1, 0}),
		circle(3, []int{0, 1}, []int{1, 2}, []int{2, 0}),
		circle(3, []int{0, 1, 2}, []int{0, 2}, []int{1, 2}),
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			told := 0
			look := func(t *testing.T, r *Report) {
				told += r.Deadlocks
				if r.Ended > soon {
					t.Errorf("it took %s", r.Ended)
				}
			}
			scene{program: p, may: kills(append(p.those("service"), Gatekeeper)...), skip: i, step: 41, look: look}.play(t)
			t.Logf("%d calls were told", told)
		})
	}
}
