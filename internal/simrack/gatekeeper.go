package simrack

import (
	"context"
	"errors"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
)

// controller is a Gatekeeper that runs.
type controller struct {
	*gatekeeper.Gatekeeper
	store *wal.Log // nil without Config.Disk and LogDir
	stop  context.CancelFunc
	ended chan struct{} // closed when it has ended
	why   error         // it has
}

// startGatekeeper starts a Gatekeeper with what the disk holds.
func (r *Rack) startGatekeeper() (*controller, error) {
	k := &controller{ended: make(chan struct{})}
	var err error
	secret := endpoint.Secret{1}
	if r.cfg.LogDir != "" {
		secret = endpoint.Secret{} // it is drawn, or the log's
		k.store, err = wal.Open(r.cfg.LogDir, r.cfg.LogOptions)
	} else if r.cfg.Disk != nil {
		k.store, err = wal.OpenMemory(r.cfg.Disk, r.cfg.LogOptions)
	}
	if err != nil {
		return nil, err
	}
	k.Gatekeeper, err = gatekeeper.New(gatekeeper.Config{
		Conn: hesitant{r}, Secret: secret, Election: control.Election{Low: uint64(r.cfg.Clock().UnixNano())}, //nolint:gosec // after 1970
		Heartbeat: r.cfg.Heartbeat, MTU: r.cfg.MTU, Store: k.store, Machines: r.cfg.Machines, PairByNumber: r.cfg.PairByNumber, FillRate: r.cfg.FillRate, Ports: r.cfg.ports(), ShareExports: r.cfg.ShareExports, Logger: r.cfg.Log,
	})
	if err != nil {
		return nil, errors.Join(err, k.closeLog())
	}
	ctx, stop := context.WithCancel(r.core.ctx)
	k.stop = stop
	r.core.run("gatekeeper", func(context.Context) error {
		if k.why = k.Run(ctx); k.why != nil {
			r.fail()
		}
		close(k.ended)
		return nil
	})
	return k, nil
}

// end stops the Gatekeeper and returns why it ended, if not for that.
func (k *controller) end() error {
	k.stop()
	<-k.ended
	return errors.Join(k.why, k.closeLog())
}

func (k *controller) closeLog() error {
	if k.store == nil {
		return nil
	}
	return k.store.Close()
}

// Log is the log of the Gatekeeper that runs; nil without Config.Disk.
func (r *Rack) Log() *wal.Log {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.controller == nil {
		return nil
	}
	return r.controller.store
}

// CrashGatekeeper ends the Gatekeeper as SIGKILL would: what it had not logged is
// lost, and so is what the switch hands up until RestartGatekeeper. It is for a
// rack with Config.Disk. OnFrame may call it.
func (r *Rack) CrashGatekeeper() {
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	r.mu.Lock()
	k := r.controller
	r.controller = nil
	r.mu.Unlock()
	if k != nil {
		r.cfg.Disk.Crash()
		_ = k.end() // the log's failure
	}
}

// OustGatekeeper takes the log from the Gatekeeper that runs, as an operator does who
// starts another one elsewhere; RestartGatekeeper is the other one's start. The first one
// runs on, can log nothing any more, and ends by itself when it notices. It is for a rack
// with Config.Disk. OnFrame may call it.
func (r *Rack) OustGatekeeper() {
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.controller != nil {
		r.cfg.Disk.Crash()
		r.ousted, r.controller = append(r.ousted, r.controller), nil
	}
}

// RestartGatekeeper starts a Gatekeeper after CrashGatekeeper, and returns when
// the switch obeys it, or it has been crashed again.
func (r *Rack) RestartGatekeeper(ctx context.Context) error {
	k, err := r.newGatekeeper()
	if k == nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for events := k.Subscribe(ctx); ; {
		s, err := k.Snapshot(ctx)
		if errors.Is(err, gatekeeper.ErrStopped) {
			return r.crashed(k, err)
		}
		if err != nil || s.Switch {
			return err
		}
		select {
		case <-events:
		case <-k.ended:
			return r.crashed(k, k.why)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// crashed tells why a Gatekeeper has ended, nil if it was crashed.
func (r *Rack) crashed(k *controller, why error) error {
	if r.Gatekeeper() != k.Gatekeeper {
		return nil
	}
	return errors.Join(errors.New("simrack: the Gatekeeper has ended"), why)
}

// newGatekeeper starts a Gatekeeper unless one runs. It begins with the log, which may take
// its time, so the lock is free meanwhile.
func (r *Rack) newGatekeeper() (*controller, error) {
	r.turn <- struct{}{}
	defer func() { <-r.turn }()
	if r.Gatekeeper() != nil {
		return nil, nil
	}
	k, err := r.startGatekeeper()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.controller = k
	return k, nil
}
