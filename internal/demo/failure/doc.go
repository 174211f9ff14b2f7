// Package failure is what `bifrost demo --fail` shows: a rack on which a call is
// made that must happen exactly once, and one or two blades that lose their power at
// the worst moment.
//
//	teller (c1) ──▶ [Front (s1)] ──▶ Counter (s2)      x1, x2: spares
//	durable main     lends it on      adds in its state and in distributed memory
//
// A Scenario says who dies when; its triggers are packets and stages of the call,
// never times. The stage (stage.go) brings the rack up, deploys the programs of the
// cast (cast.go), strikes, and verifies what is left: the account has what one
// call adds, in the service's state and in memory. A chronicle (chronicle.go) turns
// the Gatekeeper's events into a picture in text (lanes.go).
package failure
