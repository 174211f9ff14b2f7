package bench

import (
	"context"

	"github.com/bifrost-rack/bifrost/bench/peer"
	"github.com/bifrost-rack/bifrost/bench/report"
)

// sizes are the arrays' sizes, from 1 byte to 2 MiB.
func (l *Lab) sizes(op string) (points []point) {
	all := []int{1, 16, 64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20}
	if l.Pace.Fewer {
		all = []int{1, 1 << 10, 64 << 10, 2 << 20}
	}
	for _, n := range all {
		points = append(points, point{x: float64(n), work: peer.Work{Op: op, Size: n}})
	}
	return points
}

// datagramArray is the largest array that certainly fits a datagram with its headers.
const datagramArray = 60 << 10

// tooLarge says what does not fit one datagram of a peer that has no more.
func tooLarge(p peer.Peer, at point) bool {
	size := at.work.Size
	if at.work.Op == peer.Add {
		size *= 2
	}
	return p.Name == "udp" && size > datagramArray
}

// referenceThreshold compares what a reference does to a short array: by value, inside the
// call, or in a region. The runtime's limit (rpc.Ref) is to stand where the two meet.
var referenceThreshold = Experiment{
	Experiment: report.Experiment{
		Name: "reference-threshold", Question: "From which size on is a region faster than a value inside the call?",
		Method: "An array is passed, a number added to every byte, and the array returned: by value inside call and answer, by regions made for it, " +
			"and by rpc.Ref, which chooses.",
		X: report.Axis{Title: "array", Unit: "bytes", Scale: report.Log}, Y: microseconds,
	},
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		c := contest{peers: []string{"thrift-udp", "bifrost-regions", "bifrost"}}
		for _, n := range []int{2 << 10, 4 << 10, 8 << 10, 16 << 10, 24 << 10, 32 << 10, 48 << 10, 60 << 10} {
			if l.Pace.Fewer && n != 2<<10 && n != 32<<10 {
				continue
			}
			c.points = append(c.points, point{x: float64(n), work: peer.Work{Op: peer.Increment, Size: n}})
		}
		return c.run(ctx, l, e)
	},
}

// arraysMethod says what an operation of arrays is.
const arraysMethod = " All that a program does for it counts: by reference, the arguments are allocated and written, the call made, " +
	"the result read, and everything freed (the runtime keeps what is freed for a moment, so that most allocations and frees wait for nobody); " +
	"where the program keeps its regions itself, the arguments are written and results freed in the background. Every result is checked, outside of the time. The bare sockets move the same bytes and do nothing with them."

var arrayPeers = []string{"udp", "tcp", "bifrost", "bifrost-kept", "thrift-udp", "thrift-framed", "thrift-buffered", "grpc"}

var incrementArray = Experiment{
	Experiment: report.Experiment{
		Name: "increment-array", Question: "What does a simple workload cost: one array there, one back?", Figures: "7.6",
		Method: "An array is passed, a number added to every byte, and the array returned." + arraysMethod,
		X:      report.Axis{Title: "array", Unit: "bytes", Scale: report.Log}, Y: microseconds,
	},
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		return contest{peers: arrayPeers, points: l.sizes(peer.Increment), unable: tooLarge}.run(ctx, l, e)
	},
}

var addArrays = Experiment{
	Experiment: report.Experiment{
		Name: "add-arrays", Question: "What does a simple workload cost: two arrays there, one back?", Figures: "7.7",
		Method: "Two arrays are passed, added element by element, and their sum returned." + arraysMethod,
		X:      report.Axis{Title: "each array", Unit: "bytes", Scale: report.Log}, Y: microseconds,
	},
	Run: func(ctx context.Context, l *Lab, e *report.Experiment) error {
		return contest{peers: arrayPeers, points: l.sizes(peer.Add), unable: tooLarge}.run(ctx, l, e)
	},
}
