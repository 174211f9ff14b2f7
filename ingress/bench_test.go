package ingress_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
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
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	b.Cleanup(client.CloseIdleConnections)
	var keys atomic.Int64
	post := func(key bool) error {
		req, err := http.NewRequest(http.MethodPost, at+"/call/Shop/fail", strings.NewReader(`{"how":"declared"}`))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		if key {
			req.Header.Set("Idempotency-Key", fmt.Sprint("k", keys.Add(1)))
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err == nil && resp.StatusCode != http.StatusUnprocessableEntity {
			err = fmt.Errorf("%s: %s", resp.Status, body)
		}
		return err
	}
	for _, c := range []struct {
		name string
		call func() error
	}{
		{"rpc", func() error {
			if err := gen.OpenShop(node, shop.Name).Fail(b.Context(), "declared"); rpc.CodeOf(err) != rpc.Declared {
				return err
			}
			return nil
		}},
		{"http", func() error { return post(false) }},
		{"http-key", func() error { return post(true) }},
	} {
		for _, clients := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/%d", c.name, clients), func(b *testing.B) {
				done := make(chan error, clients)
				var left atomic.Int64
				left.Store(int64(b.N))
				for range clients {
					go func() {
						var err error
						for err == nil && left.Add(-1) >= 0 {
							err = c.call()
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
