//go:build linux

package dsmclient_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// BenchmarkCableTCP compares reads and writes with TCP over the same cable: a
// server that sends as many bytes as it is asked for, or takes them and says so.
// Both are done in turn; the metrics are medians, and their ratio TCP ÷ DSM, which
// a busy machine disturbs less than the times.
func BenchmarkCableTCP(b *testing.B) {
	var c *dsmclient.Client
	var tcp net.Conn
	apart(b, func() {
		blade, compute, enter := cable(b)
		enter(blade)
		s := serve(b, blade)
		listen := listenTCP(b)
		enter(compute)
		c = dial(b, compute, s)
		var err error
		tcp, err = net.Dial("tcp6", listen)
		must(b, err)
		b.Cleanup(func() { tcp.Close() })
	})
	ctx := context.Background()
	for _, size := range []int{8, 4 << 10, 64 << 10, 2 << 20} {
		buf := make([]byte, size)
		p, err := c.Alloc(ctx, uint64(size))
		must(b, err)
		_, err = c.Write(ctx, p, buf)
		must(b, err)
		for name, ops := range map[string][2]func() error{
			"read": {
				func() error { _, err := c.Read(ctx, p, buf); return err },
				func() error { return askTCP(tcp, buf, false) },
			},
			"write": {
				func() error { _, err := c.Write(ctx, p, buf); return err },
				func() error { return askTCP(tcp, buf, true) },
			},
		} {
			b.Run(name+"/"+strconv.Itoa(size), func(b *testing.B) {
				var took [2][]time.Duration
				for b.Loop() {
					for i, op := range ops {
						start := time.Now()
						must(b, op())
						took[i] = append(took[i], time.Since(start))
					}
				}
				for i := range took {
					slices.Sort(took[i])
				}
				dsm, tcp := took[0][len(took[0])/2], took[1][len(took[1])/2]
				b.ReportMetric(0, "ns/op") // of both: says nothing
				b.ReportMetric(float64(dsm.Nanoseconds()), "dsm-ns")
				b.ReportMetric(float64(tcp.Nanoseconds()), "tcp-ns")
				b.ReportMetric(float64(tcp)/float64(dsm), "x-tcp")
			})
		}
		must(b, c.Free(ctx, p))
	}
}

// tcpHost is the memory blade's address for TCP.
var tcpHost = dsmpacket.Make(prefix, 1, dsmpacket.IDOf(1<<18, 1)).Addr()

// listenTCP serves askTCP in the present namespace.
func listenTCP(b *testing.B) string {
	l, err := net.Listen("tcp6", "[::]:7000")
	must(b, err)
	b.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		buf := make([]byte, 2<<20)
		var head [8]byte
		for {
			if _, err := io.ReadFull(c, head[:]); err != nil {
				return
			}
			n := binary.BigEndian.Uint32(head[:])
			if head[4] != 0 {
				if _, err := io.ReadFull(c, buf[:n]); err != nil {
					return
				}
				n = 1
			}
			if _, err := c.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	return netip.AddrPortFrom(tcpHost, 7000).String()
}

// askTCP reads or writes buf.
func askTCP(c net.Conn, buf []byte, write bool) error {
	head := binary.BigEndian.AppendUint32(make([]byte, 0, 8), uint32(len(buf)))
	if !write {
		if _, err := c.Write(append(head, 0, 0, 0, 0)); err != nil {
			return err
		}
		_, err := io.ReadFull(c, buf)
		return err
	}
	out := net.Buffers{append(head, 1, 0, 0, 0), buf}
	if _, err := out.WriteTo(c); err != nil {
		return err
	}
	_, err := io.ReadFull(c, buf[:1])
	return err
}
