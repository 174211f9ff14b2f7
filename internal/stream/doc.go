// Package stream keeps the numbered parts of a stream while they are under way, for the side that has a timer: one that sends parts
// and is told what has come, or one that asks for parts and gets them. It says which parts are lost, when to look again, and
// how much may be under way. It knows neither packets nor what is in the parts, does no I/O and reads no clock. A value of
// it has one owner.
//
//	Send ──▶ under way ──Came, Below──▶ come
//	          │     ▲
//	   lost, Tick   Again
//	          ▼     │
//	         to be sent again
//
// A part is lost when one that was sent three places later has come (RFC 9002), or when nothing has come for a while. That while
// is the round trip's (package pace), and doubles until a round trip has been measured again (RFC 6298).
package stream
