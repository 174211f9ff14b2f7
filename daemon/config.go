package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// Blade is what every daemon is told about its blade.
type Blade struct {
	// Name is unique in the rack.
	Name string
	// Stack is the blade's network.
	Stack netio.Stack
	// Address is where control packets come from. The stack must have it; it need
	// not be known to the rack.
	Address netip.Addr
	// MAC is the Ethernet address of the blade's interface.
	MAC frame.MAC
	// Spec describes the blade for people.
	Spec map[string]string
	// Boot tells this start of the daemon from others; 0 draws one at random.
	Boot uint64
	// Log receives notable events; nil discards them.
	Log *slog.Logger
	// Registered, if set, is called each time the Gatekeeper has welcomed the
	// blade and it is ready. It must not block.
	Registered func()
}

func (b *Blade) check() error {
	switch {
	case b.Name == "":
		return errors.New("the blade has no name")
	case b.Stack == nil:
		return fmt.Errorf("blade %s has no network", b.Name)
	case !b.Address.Is6():
		return fmt.Errorf("blade %s: %s is not an IPv6 address", b.Name, b.Address)
	}
	if b.Log == nil {
		b.Log = slog.New(slog.DiscardHandler)
	}
	for b.Boot == 0 {
		b.Boot = rand.Uint64()
	}
	return nil
}
