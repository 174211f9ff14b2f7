package crash

import (
	"math/rand/v2"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Racks of some settings have small limits and short lifetimes. Each is drawn by itself:
// its least that leaves programs what they need to come to their end, some more, or the
// default.

// leastNode are those of nodes.
var leastNode = rpc.Limits{
	Started: 1, Detached: 1, Slots: 32, NodeSlots: 16, ReplyBytes: 64 << 10, Lifetime: time.Minute,
	Memory: dsm.Limits{Window: 1, FirstTimeout: 5 * time.Millisecond, LeastTimeout: 2 * time.Millisecond, MostTimeout: 250 * time.Millisecond, GiveUp: 30 * time.Second},
}

// leastMemory are those of memory servers: rings of sixteen records for some hundred nodes.
// What one program changes and has not committed fits into the undo.
var leastMemory = store.Limits{Records: 2048, Clients: 128, Marks: 4, Undo: 12 << 20, Shadow: 4 << 10, IdleShadows: 1, Zero: 1}

// memoryLimits are those of every memory server.
func (s Setting) memoryLimits() (l store.Limits) {
	if s.Limits == 0 {
		return l
	}
	d, least := limitDice{rand.New(rand.NewPCG(s.Limits, 3))}, leastMemory
	return store.Limits{
		Records: d.draw(least.Records), Clients: d.draw(least.Clients), Marks: d.draw(least.Marks), Undo: d.draw(least.Undo), Shadow: d.draw(least.Shadow),
		IdleShadows: d.draw(least.IdleShadows), Zero: d.draw(least.Zero),
	}
}

// limitDice draw limits.
type limitDice struct{ *rand.Rand }

// draw returns the least, up to four times as much, or 0, which stands for the default.
func (d limitDice) draw(least int) int {
	switch d.IntN(3) {
	case 0:
		return least
	case 1:
		return least + d.IntN(3*least+1)
	}
	return 0
}

// time draws one that is a time.
func (d limitDice) time(least time.Duration) time.Duration { return time.Duration(d.draw(int(least))) }

// nodeLimits are those of every node, with so many clients.
func (s Setting) nodeLimits(clients int) (l rpc.Limits) {
	if s.Limits == 0 {
		return l
	}
	d, least := limitDice{rand.New(rand.NewPCG(s.Limits, 2))}, leastNode
	l = rpc.Limits{
		Started: d.draw(least.Started), Detached: d.draw(least.Detached), Slots: d.draw(least.Slots),
		NodeSlots: d.draw(least.NodeSlots), ReplyBytes: d.draw(least.ReplyBytes),
		Lifetime: d.time(least.Lifetime), Memory: dsm.Limits{
			Window: d.draw(least.Memory.Window), FirstTimeout: d.time(least.Memory.FirstTimeout), LeastTimeout: d.time(least.Memory.LeastTimeout),
			MostTimeout: d.time(least.Memory.MostTimeout), GiveUp: d.time(least.Memory.GiveUp),
		},
	}
	if l.Slots != 0 {
		l.Slots += 4 * clients // clients that have ended have theirs for a lifetime, and those of calls that were given up are not used again at once
	}
	if l.ReplyBytes != 0 {
		l.ReplyBytes += 8 * s.Large // answers that are on their way, or the calls fail
	}
	return l
}
