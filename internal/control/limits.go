package control

import (
	"time"

	"github.com/bifrost-rack/bifrost/internal/pace"
)

// Every bound of the conversation, in one place.
const (
	// Window is how far a request's id may lie above its sender's floor, and so
	// how many replies the other side keeps for duplicates. A rack has a few
	// requests per blade under way; what does not fit is refused as Overloaded.
	Window = 256
	// Kept is how much of it Endpoint.AskInTurn leaves for others.
	Kept = 64
	// MaxHandlers bounds the requests that an Endpoint handles at a time. A
	// request that finds none free is dropped; it will be sent again.
	MaxHandlers = 32
	// MaxMessage is how many bytes the body of a message has at most. The largest one
	// is an export of 1,024 methods with names of 255 bytes.
	MaxMessage = 2 << 20
	// burstPackets and burstBytes bound the parts of a message that are sent without
	// waiting for the other side: they must fit the receive buffer of its socket, which
	// has 208 KiB by default, of which a packet of 1,280 bytes takes 2.3.
	burstPackets = 16
	burstBytes   = 64 << 10
	// maxKept bounds what a Peer keeps of what the other side sends, in bytes:
	// messages that are not whole, and replies for duplicates. It is more than Window
	// replies of 64 KiB take. A request beyond that is dropped; it will be
	// sent again.
	maxKept = 32 << 20
	// MaxKeptByHand is how many nodes of programs that were started by hand may keep states of services or durable mains
	// on one blade, those included whose programs have ended: nobody but an operator ends these. Together they
	// may take 4 GiB of the rack's memory for ledgers (64 MiB each), and 64 of its nodes.
	MaxKeptByHand = 64
	// retiredBoots is how many earlier boots of the other side are remembered, so
	// that their late packets do not pass for a restart.
	retiredBoots = 16
)

// Retries are the pauses until an unanswered request is sent again: above what a
// Gatekeeper takes to write some rules.
var Retries = pace.Pauses{First: 50 * time.Millisecond, Most: time.Second}
