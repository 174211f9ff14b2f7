package admin

import "time"

// Every bound of the admin API, in one place.
const (
	// maxHeader and maxBody bound a request, in bytes; no body is larger than a
	// few names.
	maxHeader = 16 << 10
	maxBody   = 64 << 10
	// headerTimeout and requestTimeout bound a request: its headers, and all of it
	// with its answer. Streams have the latter for each write.
	headerTimeout  = 5 * time.Second
	requestTimeout = 30 * time.Second
	// idleTimeout ends connections that nobody uses.
	idleTimeout = 2 * time.Minute
	// backendTimeout bounds how long the Gatekeeper may take for an answer; its
	// loop takes microseconds, but a switch has to be asked for its rules.
	backendTimeout = 15 * time.Second
	// shutdownTimeout is how long requests under way may take when the server
	// ends.
	shutdownTimeout = 5 * time.Second
	// maxConns bounds the connections of one listener whose requests have had a token; each token has its share. maxStrangers
	// bounds further ones: another one closes the oldest of them. On a socket, whose users are trusted, further ones wait.
	maxConns     = 256
	maxStrangers = 128
	// strangerTimeout ends connections without a token that nobody uses.
	strangerTimeout = 5 * time.Second
	// maxStreams bounds the readers of events.
	maxStreams = 64
	// kept is how many events are kept for readers that were away: at a few
	// hundred bytes, some MiB.
	kept = 4096
	// heartbeat is how often a stream without events shows that it is alive.
	heartbeat = 15 * time.Second
	// streamBatch is how many events a stream writes before it flushes.
	streamBatch = 256
	// maxTrace bounds the calls of one trace: with their steps, some 4 MiB.
	maxTrace = 1000
	// healthTimeout is how long the loop may take to prove that it is alive.
	healthTimeout = 2 * time.Second
	// minToken is the shortest token accepted, in bytes; generated ones have 43,
	// for 256 bits.
	minToken = 16
)
