// Package crash shows that calls are exactly-once: it runs random programs on the
// simulated rack, crashes everything at every packet, and compares with what the
// programs come to when nothing crashes.
//
//	seed ─▶ Generate ─▶ Program ─┬─▶ Model ─────────────▶ Expectation ─┐
//	                             └─▶ Perform (a rack, ─▶ ledger ───────┴▶ oracle ─▶ Report
//	                  Case ─────────▶ crasher on it)
//
// A program is data: services, with state or without, and those who call them, which
// are durable mains and plain clients; what each execution does is a Script of
// operations: allocate, write, read, free, call by value and by reference, nested and
// beside each other, one-way, change the state, count in distributed memory, do
// something outside, look at clock and dice, fail. The interpreter is the same on the
// rack and in the model.
//
// What an execution sees is of two kinds. Its value depends on the program alone and
// must be the model's. Its noise depends on all that is left to chance as well, and
// goes into every call it makes and every answer it gives; so a re-run that sees
// something else than the run before makes another call than is on record, which fails as
// nondeterminism, or returns something else than its caller has seen already, which
// the books notice.
//
// The oracle asks, when the clients have ended:
//
//   - Do results, and with them all that was read from memory, equal the model's?
//   - Has each operation made its entries in the services' states and its counts in
//     distributed memory once, and its side effects at least once, and no more often
//     than there were crashes?
//   - Does each entry say what its caller was told, and did every call bring the same,
//     however often its caller was run again?
//   - Are the histories of each region and of each service's state linearizable?
//     (Executions that were rolled back included.)
//   - Of a plain client that died: has each of its calls run as a whole or not at all?
//   - Has a call run as a whole that an execution has given up?
//   - Has a call that has shown something at a node run at no other one?
//   - Does the run of a call of fate-share or tainted that counts belong to the last run of its caller?
//   - Have both copies of a machine the same ledgers in the end, and has each answer been forgotten whose caller has not failed?
//   - When all has ended and is undeployed: is no node, identity, region, undo, call, access rule or log record left? In
//     a third of the cases the programs are killed at the undeployment, so their nodes have heirs.
//
// Some rules have others behind them, and a run that breaks one of them may come to a good end. So the oracle asks while the rack runs,
// too (rules.go):
//
//   - When a node's next incarnation begins, does the switch let nothing in from the former one?
//   - When a run of a durable main begins, has memory what its last checkpoint says, and nothing that is in doubt?
//   - Is a ledger opened only when its former run is sealed, and changed only by those who know its birth number?
//
// Scenes are small programs that are explored at every packet (scenes_test.go): callees that keep what they are lent, memory blades
// that have their ledgers on disk and lose power, alone or with the whole rack, and packets of which a copy comes late.
//
// There are two mixes of cases. In the plain one a crash is one of five things: a
// program's kill, which its daemon notices; its blade's power cut; its link's failure, which
// only silence tells; a stop of its blade, which then goes on with what it was about to say;
// the Gatekeeper's kill and restart. Crashes come before or after any packet, alone or up to
// four in a run, on a good, a lossy and a late network. With the slow one, switch and log
// take their time, with the uneven one some blades' links do: what follows from them, like rules
// and answers, or what a ledger has settled, comes in other orders. Half of
// those that follow come soon, and hit whoever is being recovered, the spare that
// takes over, or the Gatekeeper. Most calls have policy recover; some have others, and
// between them are calls of policy none, of which the oracle asks that they have
// failed, or have run as a whole.
//
// In the wide one everything fails (waysOf lists what): memory blades, too, of which one that
// was only away must have kept everything; the switch, which returns empty, refuses to write,
// or loses its connection; the Gatekeeper, which is stopped, or of which there are two; its
// log, whose disk is full, has a wrong bit, or loses power; and the channel between Gatekeeper
// and switch, which stalls. People drain blades, deploy anew, set policies and start mains
// twice meanwhile. Two things may happen at one packet. The rack is another one for each seed
// (Setting): its MTU, the year, how long its log is and whether it syncs; some programs have
// services of several nodes, regions of some MiB, or tens of clients (Widen).
//
// In one of sixteen racks values are shared by standing leases beside the program, and read in executions (leases.go). TestLeases hits everybody who has to do with them.
//
// In some racks ledgers have 64 KiB to 64 MiB, or are on disk (drawRoom); answers, effects and states are large, many call at once, and memory
// blades are drained. Of a run in which nothing fails, the oracle asks that no node has ended.
//
// Some cases are long: a chorus of voices makes hundreds of calls beside the program, or
// with -crash.calls hundreds of thousands, of a service that crashes like the others.
//
// In some wide cases services with state and durable mains belong to no deployment: somebody starts their programs by hand
// (Setting.ByHand).
//
// In three of four wide cases the memory blades are the two copies of one machine (Setting.Pairs).
// Either may fail, while the other one is filled from it, too: as long as one complete copy can
// be heard, the oracle asks what it asks when no memory blade fails, and that the copies are
// equal in the end. EveryCopy loses each copy at every packet.
//
// Regions of a memory blade without a mirror are lost with its power. Then executions that
// need them fail, and the oracle asks all else: that calls which have not failed are done as
// a whole, that none is done twice, that nobody reads what is wrong, and that nothing is left.
//
// In other scenes (scene_test.go) the oracle asks what it always does: services with state call each other in a circle (TestCircles); executions take their time, while those
// fail whose fate they share, or to whom they return a region (TestFates); a deployment is taken back while its service is called (TestTakenBack);
// nodes that close refuse calls (TestClosing), of which copies come late (TestRefusedCopies), or leave before a one-way has come (TestMovedOneway); a word to take
// back what a run has written comes late (TestLateRollbacks); the Gatekeeper restarts while a copy is completed, and both blades of its machine fail (TestFillCutOff); a copy is
// filled from which nobody reads but the oracle (TestFillEqual); calls are given up whose callee's ledger is badly heard (TestGivenUp), or that no ledger
// has yet (TestForsaken).
//
// Time is virtual (testing/synctest), so seconds of silence cost
// nothing, and a seed with its crashes replays.
//
// # Running it
//
//	go test ./internal/crash                                  what CI runs
//	go test ./internal/crash -run TestCrashEverywhere -crash.for=1h -timeout 2h
//	go test ./internal/crash -run TestCrashEverywhere -crash.from=5000 -crash.seeds=1000 -crash.cases=20
//	go test ./internal/crash -run TestCrashEverywhere -crash.seed=11 -crash.net=late -crash.every
//	go test ./internal/crash -run TestCircles -crash.every    all cases of a scene
//	go test ./internal/crash -run TestCrashEverywhere -crash.seeds=500 -crash.cases=20 -v
//	go test ./internal/crash -run TestCrashEverywhere -crash.mix=plain -crash.seeds=200 -v
//	go test ./internal/crash -run TestCrashEverywhere -crash.mix=wide -crash.seed=7 -crash.net=lossy -crash.rack=mtu=1280,sync -crash.point=57-B:kill,57+sw:stall:1s -crash.v
//
//	go test ./internal/crash -run TestCrashEverywhere -crash.seed=1 -crash.cases=3 -crash.calls=200000 -timeout 1h -v
//
// The last but one is what a failure prints: it runs one case again, with -crash.v with the
// program, every packet, and all that the rack says. Where goroutines of one program send
// at one instant, the scheduler decides which is first; so add -count=20 if it does not
// fail at once. What was covered ends the output with -v: how often each kind of victim was
// hit in which way, and how often each circumstance and operation occurred. What CI runs
// fails if one of them never did. -crash.for goes on with new seeds after the ones named. -crash.policy=tainted gives all calls
// that policy. A case takes some 20 ms of CPU and 3 MiB.
package crash
