package rpc

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/join"
)

// TestUnlockedLedger: who goes on with the ledger after having given its mutex back learns of that at once.
func TestUnlockedLedger(t *testing.T) {
	b := new(ledger).lock()
	b.unlock()
	defer func() {
		if recover() == nil {
			t.Error("the ledger was used without its mutex")
		}
	}()
	_ = b.last
}

// leaving is a session that its node gives back.
type leaving struct {
	join.Session
	crashed chan string
}

func (s *leaving) Crash(why string) { s.crashed <- why }

// TestLostLedger: when executions see that the ledger is lost, the node is over: else an operation that fails for that counts as another
// outcome than that of a former run.
func TestLostLedger(t *testing.T) {
	session := &leaving{crashed: make(chan string, 1)}
	life := newLifetime("a")
	life.ended = true // so that only what the ledger says of it is seen, and nothing more is ended
	b := (&ledger{node: &Node{life: life, log: slog.New(slog.DiscardHandler), session: session}}).lock()
	b.lose(errors.New("sealed"))
	err := life.isOver()
	b.unlock()
	if CodeOf(err) != Unavailable {
		t.Errorf("the node is over: %v", err)
	}
	if why := <-session.crashed; !strings.Contains(why, "sealed") {
		t.Errorf("the node is given back: %s", why)
	}
}
