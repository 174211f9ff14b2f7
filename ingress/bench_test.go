package ingress_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/bifrost-rack/bifrost/ingress"
	"github.com/bifrost-rack/bifrost/ingress/internal/shop"
	gen "github.com/bifrost-rack/bifrost/ingress/internal/shop/gen-go/shop"
	"github.com/bifrost-rack/bifrost/rpc"
)

// BenchmarkCall compares an exactly-once call by rpc with the same one by HTTP, without and with a key, for 1 and 64 clients. All of it, the
// rack's switch included, is in this process.
func BenchmarkCall(b *testing.B) {
	at, rack := liveRack(b, ingress.Config{Rate: 1e9, Burst: 1e9, Keys: 1 << 20, KeyBytes: 1 << 30})
	node, err := rpc.Join(rack.On(b.Context(), "c1"), rpc.WithName("client"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { node.Close(context.Background()) })
	var keys atomic.Int64
	for _, c := range []struct {
		name string
		dial func() (call func() error, err error)
	}{
		{"rpc", func() (func() error, error) {
			return func() error {
				if err := gen.OpenShop(node, shop.Name).Fail(b.Context(), "declared"); rpc.CodeOf(err) != rpc.Declared {
					return err
				}
				return nil
			}, nil
		}},
		{"http", func() (func() error, error) { return poster(at, nil) }},
		{"http-key", func() (func() error, error) { return poster(at, &keys) }},
	} {
		for _, clients := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d", c.name, clients), func(b *testing.B) {
				done := make(chan error, clients)
				var left atomic.Int64
				left.Store(int64(b.N))
				for range clients {
					go func() {
						call, err := c.dial()
						for err == nil && left.Add(-1) >= 0 {
							err = call()
						}
						done <- err
					}()
				}
				for range clients {
					if err := <-done; err != nil {
						b.Error(err)
					}
				}
			})
		}
	}
}

// poster returns a client that makes a call by HTTP each time, with a key of its own if there are keys. It has a connection, and does what a
// load generator does: Go's client takes as much of the CPUs as Go's server.
func poster(at string, keys *atomic.Int64) (call func() error, err error) {
	host := strings.TrimPrefix(at, "http://")
	conn, err := net.Dial("tcp", host)
	if err != nil {
		return nil, err
	}
	const body = `{"how":"declared"}`
	head := fmt.Sprintf("POST /call/Shop/fail HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", host, len(body))
	answers := bufio.NewReader(conn)
	return func() error {
		key := ""
		if keys != nil {
			key = fmt.Sprintf("Idempotency-Key: k%d\r\n", keys.Add(1))
		}
		if _, err := io.WriteString(conn, head+key+"\r\n"+body); err != nil {
			return err
		}
		status, length := "", 0
		for {
			line, err := answers.ReadString('\n')
			if err != nil {
				return err
			}
			if status == "" {
				status = line
			}
			if n, is := strings.CutPrefix(line, "Content-Length: "); is {
				if length, err = strconv.Atoi(strings.TrimSpace(n)); err != nil {
					return err
				}
			}
			if line == "\r\n" {
				break
			}
		}
		answer := make([]byte, length)
		_, err := io.ReadFull(answers, answer)
		if err == nil && !strings.HasPrefix(status, "HTTP/1.1 422 ") {
			err = fmt.Errorf("%s: %s", status, answer)
		}
		return err
	}, nil
}
