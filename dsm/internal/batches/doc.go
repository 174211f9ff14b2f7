// Package batches has the region slots in which a node may allocate (docs/rights.md, section 3). It is a pure core: no I/O, no lock, no clock.
//
//	Gatekeeper ──Add──▶ unknown ──Learn──▶ free ──Take──▶ busy ──Done──▶ used
//	                                        ▲                             │
//	                                        └─────────── Learn ───────────┘
//
// Others free what was handed to them, and a machine frees what an execution has freed. So a node learns from the machine which of its slots are
// free again, a batch at a time.
package batches
