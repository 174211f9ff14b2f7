package simrack_test

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// spy tells what a program's session asks the log for.
type spy struct {
	join.Joiner
	asked chan control.State
}

func (s spy) Join(ctx context.Context, name string) (join.Session, error) {
	session, err := s.Joiner.Join(ctx, name)
	return spied{session, s.asked}, err
}

type spied struct {
	join.Session
	asked chan control.State
}

func (s spied) StatePart(ctx context.Context, ask control.State) (control.StatePart, error) {
	select {
	case s.asked <- ask:
	default:
	}
	return s.Session.StatePart(ctx, ask)
}

// lastEcho waits in its first run until it is killed.
type lastEcho struct {
	service.Arrays
	runs  *atomic.Int64
	begun chan struct{}
}

func (e lastEcho) Echo(ctx context.Context, data []byte) ([]byte, error) {
	if e.runs.Add(1) == 1 {
		close(e.begun)
		<-ctx.Done()
	}
	return data, nil
}

// TestLargeCallRunsAgain: an exactly-once call that exceeds a packet runs again when its
// callee has been killed, with the whole of its arguments, which the log has. The log
// tells nobody else of them.
func TestLargeCallRunsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		begun, asked, exported := make(chan struct{}), make(chan control.State, 1), make(chan error, 2)
		r, err := simrack.Start(t.Context(), simrack.Config{
			MTU: 1500, Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk),
			Programs: map[string]simrack.Program{"server": func(ctx context.Context, j join.Joiner, _ control.Start) error {
				n, err := rpc.Join(join.NewContext(ctx, spy{j, asked}), rpc.WithName("server"))
				if err == nil {
					err = n.Export(ctx, "Arrays", arrays.NewArraysProcessor(lastEcho{runs: &runs, begun: begun}))
				}
				exported <- err
				<-ctx.Done()
				if err != nil || errors.Is(context.Cause(ctx), simrack.ErrKilled) {
					return err // like a process: not another word
				}
				return n.Close(context.WithoutCancel(ctx))
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Gatekeeper().Deploy(t.Context(), resources.Spec{Name: "app", Programs: []resources.Program{{
			Name: "p", Args: []string{"server"}, Nodes: 1, Blades: []string{"s1"}, Services: []resources.ServiceSpec{{Name: "Arrays"}},
		}}}); err != nil {
			t.Fatal(err)
		}
		caller, err := r.Join(t.Context(), "c1", "caller")
		if err := errors.Join(err, <-exported); err != nil {
			t.Fatal(err)
		}
		thief := make(chan join.Session)
		if _, err := r.Run("s2", "thief", func(ctx context.Context, j join.Joiner, _ control.Start) error {
			s, err := j.Join(ctx, "thief")
			thief <- s
			<-ctx.Done()
			return err
		}); err != nil {
			t.Fatal(err)
		}
		data, done := bytes.Repeat([]byte("0123456789abcdef"), 4096), make(chan error)
		go func() {
			got, err := arrays.NewArraysClient(caller.Client("Arrays")).Echo(t.Context(), data)
			if err == nil && !bytes.Equal(got, data) {
				err = errors.New("another array came back")
			}
			done <- err
		}()
		select {
		case <-begun:
		case err := <-done:
			t.Fatal("the call was not begun:", err)
		}
		ask, other := <-asked, <-thief
		for _, answer := range []bool{false, true} {
			part, err := other.StatePart(t.Context(), control.State{Message: ask.Message, Answer: answer})
			if fault.CodeOf(err) != fault.Stale {
				t.Errorf("another node asks for the call (answer %v): %d bytes, %v", answer, len(part.Data), err)
			}
		}
		if err := r.KillSoon("s1", "app/p/1"); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil || runs.Load() != 2 {
			t.Errorf("%v after %d runs", err, runs.Load())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}
