// Package daemon is what runs on a blade: it announces the blade to the
// Gatekeeper (thesis section 5.3) and carries out the Gatekeeper's commands. A
// memory blade's daemon has a memory server; a compute blade's has nodes, and
// starts and stops programs.
//
//	             ┌───────────── Compute ─────────────┐
//	programs ──▶ │ Host: join, export, leave         │
//	 (join.Host) │   nodes ── addresses on the stack │
//	             │   programs ── Runner              │
//	             └──────────────┬────────────────────┘
//	                        registrar ◀══ control.Endpoint ══▶ Gatekeeper
//	             ┌──────────────┴────────────────────┐
//	             │ Memory: memory server; fence,     │
//	             │         reclaim, list regions     │
//	             └───────────────────────────────────┘
//
// A daemon says hello until it is welcomed, and then that it is alive. When the
// Gatekeeper answers that it does not know the blade (it had given it up, or has
// restarted without its log), the daemon's nodes have lost their identity: they
// end, and the daemon says hello again.
//
// Everything works on a netio.Stack, so the same daemons run on the kernel and on
// the virtual wire.
package daemon
