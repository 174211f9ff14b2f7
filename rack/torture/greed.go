package torture

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/join/unixjoin"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rack/internal/kernel"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// The user without privileges takes all that it gets of what the users of its blade, and of the rack, share: connections to
// the daemon, nodes, questions to the Gatekeeper, memory, room for ledgers.
// It must be refused connections and nodes. While it holds what it has got, another user of the blade must get what it asks for.

const (
	greedyConnections = 1000 // at the daemon's socket; they take descriptors of this process, too
	greedyNodes       = 200
	greedyQuestions   = 60 // of each node at a time
	greedyMemories    = 6  // nodes that allocate
	greedyRegion      = 256 << 10
	honestPuts        = 5 // values that another user has stored meanwhile
	greedyLedgers     = 16
	greedyLedger      = 64 << 20 // bytes of each
	greedyRecord      = 32 << 10
	greedyAtOnce      = 16               // records
	honestWait        = 10 * time.Second // for what another user asks for
	// longEnough is how long a run must be for ledgers to be filled: a gigabyte at each copy.
	longEnough = 30 * time.Second
)

// errEnough is what greed that was refused nothing comes to.
var errEnough = errors.New("it was refused nothing")

// greedy is the program that does so, on c2. It belongs to one goroutine.
type greedy struct {
	t       *torture
	done    map[string]int    // beside the torture's
	callers *kernel.Namespace // c2
}

// grab does all of it once, however long the run is to last.
func (y *greedy) grab(ctx context.Context) (err error) {
	if y.callers, err = kernel.OpenNamespace(plan.Namespace(y.t.cfg.Name, "c2")); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, y.callers.Close()) }()
	for _, act := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"takes connections of the daemon", y.takeConnections}, {"poses as the daemon", y.pose},
		{"takes nodes, questions, memory and ledgers", y.takeNodes},
	} {
		if ctx.Err() != nil {
			return nil
		}
		y.done[act.what]++
		y.t.say("a user without privileges %s", act.what)
		if err := act.do(ctx); err != nil && ctx.Err() == nil {
			return fmt.Errorf("a user without privileges %s: %w", act.what, err)
		}
	}
	return nil
}

// honest has another user of the blade join, ask, and leave.
func (y *greedy) honest(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, honestWait)
	defer cancel()
	s, err := joinAs(ctx, y.callers, 0)
	if err == nil {
		_, err = s.Service(ctx, "Counter")
		err = errors.Join(err, s.Close(ctx))
	}
	if err != nil {
		return fmt.Errorf("meanwhile another user of the blade cannot join: %w", err)
	}
	return nil
}

// joinAs makes a program of a user a node of a blade.
func joinAs(ctx context.Context, blade *kernel.Namespace, uid uint32) (s join.Session, err error) {
	err = blade.DoAs(uid, func() (err error) {
		s, err = unixjoin.Joiner{}.Join(ctx, nodeOf(uid))
		return err
	})
	return s, err
}

// nodeOf is what nodes of a user are called here.
func nodeOf(uid uint32) string { return fmt.Sprint("user-", uid) }

// takeConnections holds connections to the daemon's socket, on which nothing is said. Those beyond the user's share are told so, and
// closed by the daemon.
func (y *greedy) takeConnections(ctx context.Context) error {
	var held []net.Conn
	defer func() {
		for _, c := range held {
			_ = c.Close() // nothing is awaited there
		}
	}()
	if err := y.callers.DoAs(stranger, func() error {
		for range greedyConnections {
			c, err := net.Dial("unix", join.SocketName)
			if err != nil {
				return err
			}
			held = append(held, c)
		}
		return nil
	}); err != nil {
		return err
	}
	if err := y.honest(ctx); err != nil {
		return err
	}
	last := held[len(held)-1]
	if err := last.SetReadDeadline(time.Now().Add(honestWait)); err != nil {
		return err
	}
	if said, err := io.ReadAll(last); err != nil || len(said) == 0 {
		return errors.Join(errEnough, err)
	}
	return nil
}

// pose listens where programs look for their daemon.
func (y *greedy) pose(context.Context) error {
	return y.callers.DoAs(stranger, func() error {
		l, err := net.Listen("unix", join.SocketName)
		if err == nil {
			return errors.Join(errAdmitted, l.Close())
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
		return nil
	})
}

// takeNodes joins as often as it may, and has all nodes ask at a time, and fill their ledgers.
func (y *greedy) takeNodes(ctx context.Context) (err error) {
	var nodes []join.Session
	defer func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTimeout)
		defer cancel()
		for _, n := range nodes {
			err = errors.Join(err, n.Close(ending))
		}
	}()
	for range greedyNodes {
		var s join.Session
		if s, err = joinAs(ctx, y.callers, stranger); err != nil {
			break
		}
		nodes = append(nodes, s)
	}
	if err == nil {
		return errEnough
	}
	if fault.CodeOf(err) != fault.Overloaded {
		return err
	}
	y.done["greedy nodes"] += len(nodes)
	// The daemon ends a node that asks on while its questions wait, so those that allocate and write have asked nothing.
	if err := y.askAll(ctx, nodes[min(len(nodes), greedyMemories+greedyLedgers):], nodes[0]); err != nil {
		return err
	}
	if err := y.takeMemory(ctx, nodes); err != nil {
		return err
	}
	if y.t.cfg.For >= longEnough {
		return y.fillLedgers(ctx, nodes)
	}
	return nil
}

// askAll has nodes ask the Gatekeeper many things at a time, and waits for an end of that: a node of the user that has asked nothing may ask then.
func (y *greedy) askAll(ctx context.Context, nodes []join.Session, idle join.Session) error {
	asking, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	for _, n := range nodes {
		for range greedyQuestions {
			all.Go(func() {
				for asking.Err() == nil {
					_, _ = n.Who(asking, rackaddr.Node(1)) // refused or answered: it asks again
				}
			})
		}
	}
	err := y.honest(ctx)
	stop()
	all.Wait()
	return errors.Join(err, y.answered(ctx, idle))
}

// answered waits until the daemon has answered what was asked: it counts as the user's until then, whoever waits for it.
func (y *greedy) answered(ctx context.Context, n join.Session) error {
	ctx, cancel := context.WithTimeout(ctx, honestWait)
	defer cancel()
	return y.t.until(ctx, func(ctx context.Context) error {
		if _, err := n.Who(ctx, rackaddr.Node(1)); fault.CodeOf(err) == fault.Overloaded {
			return err
		}
		return nil
	})
}

// takeMemory has nodes allocate until their user has its share of the memory machine. Calls of another user, whose values travel by reference, go on.
func (y *greedy) takeMemory(ctx context.Context, nodes []join.Session) error {
	taken := 0
	for _, n := range nodes[:min(len(nodes), greedyMemories)] {
		c, err := clientOf(n)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }() // its node goes, and what it has
		for ; err == nil && taken <= memorySize; taken += greedyRegion {
			_, err = c.Alloc(ctx, greedyRegion)
		}
		if taken -= greedyRegion; fault.CodeOf(err) != fault.NoSpace {
			return errors.Join(errEnough, err)
		}
	}
	y.done["greedy MiB of memory"] += taken >> 20
	if taken < memorySize/4 {
		return fmt.Errorf("its regions take %d bytes: that is no attack", taken)
	}
	for i := range honestPuts {
		blob := strings.Repeat(string(rune('a'+i)), blobSize)
		if _, err := y.t.kv(ctx, blob, "put", "greedy", "-"); err != nil {
			return fmt.Errorf("meanwhile another user's value is not stored: %w", err)
		}
		if err := y.t.holds(ctx, "greedy", blob); err != nil {
			return fmt.Errorf("meanwhile another user's value is not read: %w", err)
		}
	}
	return nil
}

// clientOf is a memory client of a node.
func clientOf(n join.Session) (*dsmclient.Client, error) {
	id := n.Node()
	return dsmclient.NewClient(dsmclient.Config{Stack: n.Stack(), Address: id.Address, Incarnation: id.Incarnation, Rack: n.Rack, Batches: n.Batches})
}

// fillLedgers appends to ledgers of nodes until they, or the share of their user, are full. The tellers go on meanwhile: their calls
// are counted in the end.
func (y *greedy) fillLedgers(ctx context.Context, nodes []join.Session) error {
	var all sync.WaitGroup
	filling, cancel := context.WithTimeout(ctx, 2*honestWait)
	defer cancel()
	for _, n := range nodes[min(len(nodes), greedyMemories):min(len(nodes), greedyMemories+greedyLedgers)] {
		id := n.Node()
		if id.Ledger == nil {
			return errors.New("a node has no ledger")
		}
		c, err := clientOf(n)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }() // its node goes
		l, err := c.OpenLedger(dsmclient.LedgerConfig{Machine: id.Ledger.Machine, Birth: id.Ledger.Birth, Run: id.Incarnation})
		if err != nil {
			return err
		}
		y.done["greedy ledgers"]++
		all.Go(func() {
			for range greedyLedger / (greedyAtOnce * greedyRecord) {
				if l.Wait(filling, l.Append(slices.Repeat([][]byte{make([]byte, greedyRecord)}, greedyAtOnce)...)) != nil {
					return // it is full, or its share is
				}
			}
		})
	}
	err := y.t.until(filling, y.ledgersFull)
	err = errors.Join(err, y.honest(ctx))
	cancel()
	all.Wait()
	return err
}

// ledgersFull objects until ledgers take a quarter of what a memory blade has for them.
func (y *greedy) ledgersFull(ctx context.Context) error {
	blades, err := y.t.admin.Blades(context.WithoutCancel(ctx)) // whose answer is told in the end
	if err != nil {
		return err
	}
	var used uint64
	for _, b := range blades {
		if b.Ledgers != nil {
			used = max(used, b.Ledgers.Used)
		}
		if b.Ledgers != nil && b.Ledgers.Used >= b.Ledgers.Total/4 {
			return nil
		}
	}
	return fmt.Errorf("its ledgers take %d bytes: %w", used, errEnough)
}
