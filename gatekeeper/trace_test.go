package gatekeeper

import (
	"context"
	"errors"
	"math"
	"os"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// EventKinds has every kind that trace.go declares.
func TestEventKinds(t *testing.T) {
	source, err := os.ReadFile("trace.go")
	if err != nil {
		t.Fatal(err)
	}
	declared := regexp.MustCompile(`EventKind = "([a-z.]+)"`).FindAllStringSubmatch(string(source), -1)
	kinds := EventKinds()
	if len(declared) < 30 || len(kinds) != len(declared) {
		t.Errorf("%d kinds are declared, %d listed", len(declared), len(kinds))
	}
	for _, d := range declared {
		if !slices.Contains(kinds, d[1]) {
			t.Errorf("%s is not listed", d[1])
		}
	}
}

// A node says how long its calls have lasted. However long that is, the call has begun before it ended, and ended by now.
func TestTimeline_Ages(t *testing.T) {
	const ever = math.MaxInt64
	inSmall(t, func(s *small) {
		q := control.NodeCalls{Node: s.b.address, Incarnation: s.b.incarnation, First: true}
		for i, d := range []control.DirectCall{{Began: ever, Took: ever}, {Began: ever, Took: 1}, {Began: 1, Took: ever}, {Took: ever}, {Began: 9300000000000000, Took: 1}} {
			d.ID, d.Caller, d.Incarnation, d.Service, d.Method = control.ExecutionID{1, byte(i)}, s.a.address, s.a.incarnation, "Arrays", "add"
			q.Ended = append(q.Ended, d)
			q.Counts = []control.MethodCount{{Service: "Arrays", Method: "add", Calls: uint64(i + 1)}}
		}
		if err := s.b.ask(control.KindCalls, q, nil); err != nil {
			t.Fatal(err)
		}
		all, _, err := s.gk.Timelines(context.Background(), trace.Query{Limit: 10})
		if err != nil || len(all) != len(q.Ended) {
			t.Fatalf("%d calls, %v", len(all), err)
		}
		for _, k := range all {
			if k.A2.Before(k.A1) || k.A2.After(time.Now()) || k.ID[1] != 2 && k.ID[1] != 3 && k.A1.Year() > 1800 {
				t.Errorf("call %d: from %v to %v", k.ID[1], k.A1, k.A2)
			}
		}
	})
}

// TestCancelCall_Unanswered: who cancels a call waits neither for a daemon that does not answer, nor for a Gatekeeper that has stopped.
func TestCancelCall_Unanswered(t *testing.T) {
	for _, stops := range []bool{false, true} {
		inSmall(t, func(s *small) {
			id := rpcpacket.ID{1}
			q := control.NodeCalls{Node: s.b.address, Incarnation: s.b.incarnation, First: true, Running: []control.DirectCall{{
				ID: control.ExecutionID(id), Caller: s.a.address, Incarnation: s.a.incarnation, Service: "Arrays", Method: "add",
			}}}
			if err := s.b.ask(control.KindCalls, q, nil); err != nil {
				t.Fatal(err)
			}
			s.b.mute = true
			ended := make(chan error, 1)
			go func() { ended <- s.gk.CancelCall(context.Background(), id) }()
			s.settle()
			if stops {
				s.stopGatekeeper()
			} else {
				s.beat(2*commandPatience, s.b.testBlade)
			}
			s.settle()
			select {
			case err := <-ended:
				if stops != errors.Is(err, ErrStopped) || stops == (fault.CodeOf(err) == fault.Unavailable) {
					t.Errorf("it stops: %v: %v", stops, err)
				}
			default:
				t.Errorf("it stops: %v: it still waits", stops)
			}
		})
	}
}
