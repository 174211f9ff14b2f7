// Package devrack is the rack of `bifrost dev`: switch, Gatekeeper and blades in this process, on a virtual wire in real time, and
// programs that are processes of their own. It needs no privilege and no network of the kernel's.
//
//	bifrost dev ─┬─ simrack: wire, switch, Gatekeeper, daemons        DIR/log, DIR/ledgers/BLADE
//	             ├─ admin API and page                                DIR/admin.sock, and HOST:PORT
//	             ├─ unixjoin of each compute blade                    DIR/BLADE.sock
//	             └─ watch: an app file or program that changes is deployed
//	programs ──── relay: a stream for each UDP socket
//
// The apps' programs are deployed as on any rack: the Gatekeeper places them, has daemons start them, starts them again when they
// end, and rolls out what has changed.
package devrack
