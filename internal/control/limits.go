package control

import "time"

// Every bound of the conversation, in one place.
const (
	// Window is how far a request's id may lie above its sender's floor, and so
	// how many replies the other side keeps for duplicates. A rack has a few
	// requests per blade under way; what does not fit is refused as Overloaded.
	Window = 256
	// MaxHandlers bounds the requests that an Endpoint handles at a time. A
	// request that finds none free is dropped; it will be sent again.
	MaxHandlers = 32
	// FirstRetry is when an unanswered request is sent again: above what a
	// Gatekeeper takes to write some rules. Each further wait is twice as long, up
	// to MaxRetry.
	FirstRetry = 50 * time.Millisecond
	MaxRetry   = time.Second
	// retiredBoots is how many earlier boots of the other side are remembered, so
	// that their late packets do not pass for a restart.
	retiredBoots = 16
)
