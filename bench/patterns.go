package bench

import (
	"context"
	"fmt"

	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/report"
)

// patterns are the ways to use a value by reference: does rpc.Ref choose the better way in each?
var patterns = []Experiment{
	pattern("whole", "all of a value is read", "The callee reads all of it.", peer.Work{Op: peer.Whole}),
	pattern("page", "one page of a value is read", "The callee reads its last 4 KiB.", peer.Work{Op: peer.Page}),
	pattern("back", "a value is returned", "The callee returns it, and the caller reads all of it.", peer.Work{Op: peer.Back}),
	pattern("onward-1", "a value is passed on once", onwardMethod, peer.Work{Op: peer.Onward, Hops: 1}),
	pattern("onward-3", "a value is passed on three times", onwardMethod, peer.Work{Op: peer.Onward, Hops: 3}),
	pattern("onward-7", "a value is passed on seven times", onwardMethod, peer.Work{Op: peer.Onward, Hops: 7}),
}

const onwardMethod = "It goes on from service to service, on two blades in turn, and the last one reads all of it."

func pattern(name, when, method string, work peer.Work) Experiment {
	return Experiment{
		Experiment: report.Experiment{
			Name: "patterns-" + name, Question: "Does rpc.Ref choose the better way if " + when + "?",
			Method: "A new value is passed by reference. " + method + " It travels inside messages always, in memory always, or as the runtime chooses. " +
				"Regions are allocated, written and freed in each call.",
			X: report.Axis{Title: "value", Unit: "bytes", Scale: report.Log}, Y: microseconds,
		},
		Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
			c := contest{peers: []string{"ref-chosen", "ref-value", "ref-region"}, servers: []string{serverBlade, otherBlade}, chain: true}
			for _, n := range []int{1, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 2 << 20, 8 << 20} {
				if l.Pace.Fewer && n != 1<<10 && n != 64<<10 && n != 2<<20 {
					continue
				}
				work := work
				work.Size = n
				c.points = append(c.points, point{x: float64(n), work: work})
			}
			return c.run(ctx, l, e)
		},
	}
}

// postSize is a post's text in bytes.
const postSize = 10 << 10

var posts = Experiment{
	Experiment: report.Experiment{
		Name: "posts", Question: "What does one element of a large result cost?",
		Method: fmt.Sprintf("A list of %d posts of 10 KiB is fetched by value; or a caller has it by reference, and reads one post after the other in place, in no order.", peer.PostCount),
		X:      report.Axis{Title: "what", Scale: report.Category}, Y: report.Axis{Title: "time, median", Unit: "µs", Scale: report.Linear},
	},
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		return contest{peers: []string{"ref-chosen"}, chain: true, points: []point{
			{x: report.PostsList, label: "the list by value", work: peer.Work{Op: peer.Posts, Size: postSize}},
			{x: report.PostsOne, label: "one post in place", work: peer.Work{Op: peer.OnePost, Size: postSize}},
		}}.run(ctx, l, e)
	},
}
