package softswitch

import (
	"context"
	"errors"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/softswitch/afpacket"
)

// captureInterface captures what a port of a kernel executor receives and sends,
// until ctx ends, also over the interface's absences. The kernel shows a frame
// that comes before the program has it, and one that goes after.
func (s *Switch) captureInterface(ctx context.Context, p *port) {
	again := time.NewTicker(reopenEvery)
	defer again.Stop()
	for {
		sock, err := afpacket.OpenTap(p.name)
		if err == nil {
			s.captureSocket(ctx, p, sock)
			_ = sock.Close()
		} else if !errors.Is(err, afpacket.ErrNoInterface) && p.n.captureErrors.Add(1) == 1 {
			s.log.Error("capturing fails", "port", p.num, "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// captureSocket captures until ctx ends or the interface has gone.
func (s *Switch) captureSocket(ctx context.Context, p *port, sock *afpacket.Socket) {
	frames := make([]afpacket.Frame, 0, afpacket.BatchSize)
	for ctx.Err() == nil {
		got, err := sock.Receive(frames)
		switch {
		case errors.Is(err, afpacket.ErrTimeout):
		case err != nil:
			if sock.Gone() {
				return
			}
		}
		for _, f := range got.Frames {
			if f.Outgoing {
				s.capture(p, p.cap.out, f.Data)
			} else {
				s.capture(p, p.cap.in, f.Data)
			}
		}
	}
}
