package rack

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/bifrost-rack/bifrost/p4switch/softswitch"
	"github.com/bifrost-rack/bifrost/rack/internal/kernel"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// Down ends a rack and removes every trace of it: processes, whoever started
// them, namespaces with their links, sockets and files. What a killed run has
// left behind goes too, with or without a record. It fails with ErrNotUp if
// there is nothing at all, and with ErrHidden if a namespace keeps its name although all in it has
// ended; with Force it removes that, too.
func (h *Host) Down(ctx context.Context, name string) error {
	if err := needRoot(); err != nil {
		return err
	}
	if err := checkName(name); err != nil {
		return err
	}
	stale, err := kernel.Namespaces(plan.Prefix(name))
	if err != nil {
		return err
	}
	_, err = os.Stat(h.dir(name))
	if errors.Is(err, fs.ErrNotExist) && len(stale) == 0 {
		return &Error{Rack: name, Msg: "there is no such rack", Remedy: "`bifrost rack status` lists what is up", Err: ErrNotUp}
	}
	l, err := h.lock(name)
	if errors.Is(err, fs.ErrNotExist) { // namespaces without a record
		return h.teardown(ctx, name)
	}
	if err != nil {
		return err
	}
	if err := h.teardown(ctx, name); err != nil {
		l.unlock()
		return err
	}
	return l.remove()
}

// teardown ends all processes in the rack's namespaces, blades first so that
// they can take their leave, and deletes the namespaces.
func (h *Host) teardown(ctx context.Context, name string) error {
	names, err := kernel.Namespaces(plan.Prefix(name))
	if err != nil {
		return err
	}
	center := plan.Namespace(name, plan.Switch)
	var blades []string
	for _, ns := range names {
		if ns != center {
			blades = append(blades, ns)
		}
	}
	if err := errors.Join(stop(ctx, blades), stop(ctx, []string{center})); err != nil {
		return fmt.Errorf("rack %s: %w", name, err)
	}
	remove := kernel.DeleteNamespace
	if h.Force {
		remove = kernel.UncoverNamespace
	}
	var hidden error
	for _, ns := range names {
		if e := remove(ns); errors.Is(e, ErrHidden) {
			hidden = h.hidden(name, e)
		} else {
			err = errors.Join(err, e)
		}
	}
	return errors.Join(err, hidden, softswitch.Discard(plan.Keep(name))) // a killed switch has left it
}

// hidden is the error of a name that is left.
func (h *Host) hidden(name string, err error) error {
	return &Error{
		Rack: name, Msg: err.Error() + "; everything in the rack has ended",
		Remedy: fmt.Sprintf("`bifrost rack down --rack %s --force` removes it, and nothing else's", name), Err: err,
	}
}

func stop(ctx context.Context, namespaces []string) error {
	g, err := kernel.OpenGroup(namespaces)
	if err != nil {
		return err
	}
	defer g.Close()
	return g.Stop(ctx, stopGrace)
}
