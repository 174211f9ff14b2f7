// Package history keeps what an operator looks back at, also after a restart of the
// Gatekeeper: the latest calls that have ended, failures (calls that failed, and events of
// blades, nodes and deployments), and of each minute how many calls there were, how many
// failed, and how long they took.
//
//	Gatekeeper ── once a second: calls that have ended ──▶ History ──▶ DIRECTORY/calls, failures, minutes
//	admin API ─── each event ──────────────────────────▶         └──▶ admin API: Minutes, Events
//
// The files are JSON lines, with an older file beside each (package rotate): 2 MiB each of
// calls and of failures, 256 KiB of minutes, so 8.5 MiB in all. What is older than a week
// is not read back. The history is no part of the Gatekeeper's log, and nothing waits for it:
// whatever happens to its files, a Gatekeeper starts and works. A line that cannot be read is
// left out; a file that cannot be written is tried again a second later, and what it should have
// taken is lost and counted. A Gatekeeper that is killed loses the last second.
package history
