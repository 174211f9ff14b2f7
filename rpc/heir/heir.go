// Package heir is the program that compute daemons run as an heir. Nobody else needs it.
//
// When a deployment is taken back, its nodes finish their calls. A node that fails meanwhile, or
// is stopped because it takes too long, has a ledger that says what became of its calls:
//
//	undeploy ─▶ the node fails ─▶ fenced ─▶ heir: same address, next incarnation ─▶ leaves ─▶ ledger deleted
//
// The heir runs nothing of the deployed program, so the program need not be there any more, nor work.
// The heir
//
//   - answers calls that are done from the ledger;
//   - ends calls that had begun as unavailable, after memory has taken back what they did;
//   - refuses all others, so that their callers choose another node or learn that the call has not
//     begun;
//   - delivers the one-ways of executions that are done and of checkpoints that durable mains made,
//     and does whatever else is owed;
//   - leaves when nobody will ask for an answer any more. It asks the rack whether callers that do
//     not say so are still there.
//
// If the heir fails, another one goes on, five of them at most.
package heir

import (
	"context"

	_ "github.com/bifrost-rack/bifrost/rpc" // sets bridge.Heir
	"github.com/bifrost-rack/bifrost/rpc/internal/bridge"
)

// Run joins the rack as an heir, with the identity that the program's daemon has for it. It returns nil
// when the heir has left the rack, with nothing left to be done. With an error, such as that of a context that
// ends, another heir goes on. The names are those of the node's services: they are for people, and
// may be missing.
func Run(ctx context.Context, services ...string) error { return bridge.Heir(ctx, services) }
