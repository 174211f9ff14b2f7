//go:build linux

package ebpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/cilium/ebpf/ringbuf"
)

// restTime is how long the reader of digests rests when it has read them all. The
// packet whose digest finds the ring read up has to wake the reader, which costs its
// sender several microseconds; the digests behind it wake nobody until the reader has
// read on. Controllers have digests gathered for about as long anyway.
const restTime = 500 * time.Microsecond

// digestReader brings digests from the kernel to the sink.
type digestReader struct {
	x     *Executor
	r     *ringbuf.Reader
	timer *time.Timer
	hurry chan struct{} // capacity 1: somebody waits for a digest
	quit  chan struct{} // closed to end
	done  chan struct{}

	mu   sync.Mutex
	more sync.Cond // read has grown, or the reader has ended
	read uint64    // digests delivered
	end  bool
}

func newDigestReader(x *Executor) (*digestReader, error) {
	r, err := ringbuf.NewReader(x.maps.digests)
	if err != nil {
		return nil, fmt.Errorf("ebpf: digests: %w", err)
	}
	d := &digestReader{
		x: x, r: r, timer: time.NewTimer(restTime),
		hurry: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	d.more.L = &d.mu
	go d.run()
	return d, nil
}

func (d *digestReader) close() error {
	close(d.quit)
	err := d.r.Close()
	<-d.done
	return err
}

func (d *digestReader) run() {
	defer close(d.done)
	var rec ringbuf.Record
	for {
		err := d.r.ReadInto(&rec)
		if errors.Is(err, ringbuf.ErrClosed) {
			break
		}
		if err != nil {
			d.x.log.Error("reading digests fails", "error", err)
			break
		}
		if sample, ok := d.decode(rec.RawSample); ok {
			d.x.sink.Digest(sample)
		}
		d.mu.Lock()
		d.read++
		d.more.Broadcast()
		d.mu.Unlock()
		if rec.Remaining == 0 {
			d.rest()
		}
	}
	d.timer.Stop()
	d.mu.Lock()
	d.end = true
	d.more.Broadcast()
	d.mu.Unlock()
}

// rest lets digests gather for a moment, unless somebody waits for one.
func (d *digestReader) rest() {
	d.timer.Reset(restTime)
	select {
	case <-d.timer.C:
	case <-d.hurry:
	case <-d.quit:
	}
}

// await returns when n digests have been delivered.
func (d *digestReader) await(n uint64) {
	select {
	case d.hurry <- struct{}{}:
	default:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.read < n && !d.end {
		d.more.Wait()
	}
}

// decode reads a sample as gen.digests writes it.
func (d *digestReader) decode(b []byte) (datapath.Digest, bool) {
	defs := d.x.prog.Digests
	if len(b) < 4 || int(binary.NativeEndian.Uint32(b)) >= len(defs) {
		return datapath.Digest{}, false
	}
	def := defs[binary.NativeEndian.Uint32(b)]
	if len(b) < digestBytes(def) {
		return datapath.Digest{}, false
	}
	out := datapath.Digest{Name: def.Name, Fields: make([][]byte, len(def.Elements))}
	values := bytes.Clone(b[4:])
	for i, e := range def.Elements {
		n := elementBytes(e)
		out.Fields[i], values = values[:n:n], values[n:]
	}
	return out, true
}
