//go:build linux

package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/cilium/ebpf/ringbuf"
)

// digestReader brings digests from the kernel to the sink.
type digestReader struct {
	x    *Executor
	r    *ringbuf.Reader
	done chan struct{}

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
	d := &digestReader{x: x, r: r, done: make(chan struct{})}
	d.more.L = &d.mu
	go d.run()
	return d, nil
}

func (d *digestReader) close() error {
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
	}
	d.mu.Lock()
	d.end = true
	d.more.Broadcast()
	d.mu.Unlock()
}

// await returns when n digests have been delivered.
func (d *digestReader) await(n uint64) {
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
	out := datapath.Digest{Name: def.Name}
	at := 4
	for _, e := range def.Elements {
		n := elementBytes(e)
		out.Fields = append(out.Fields, append([]byte(nil), b[at:at+n]...))
		at += n
	}
	return out, true
}
