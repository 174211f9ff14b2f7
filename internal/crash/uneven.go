package crash

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"time"

	"github.com/bifrost-rack/bifrost/internal/wire"
)

// uneven is the network on which each blade's link takes its own time: from what a packet
// takes on a good one to a thousand times as much. So a ledger may be settled long after all
// else has come, or a question come long after what has followed from it elsewhere.
const uneven = "uneven"

// mostUneven is how many times as long as the shortest delay the longest one is.
const mostUneven = 1000

// linkOf is what the link of a blade does to packets on a network. The seed draws it where
// links differ.
func linkOf(network, blade string, seed uint64) wire.Impairment {
	i := Networks[network]
	if network == uneven {
		name := fnv.New64a()
		_, _ = name.Write([]byte(blade)) // never fails
		r := rand.New(rand.NewPCG(seed, name.Sum64()))
		i.Delay = time.Duration(float64(i.Delay) * math.Pow(mostUneven, r.Float64()))
	}
	return i
}
