package shop

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/ingress/internal/shop/gen-go/shop"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Name is what the service is called.
const Name = "Shop"

// Service implements the service. Its accounts are its state.
type Service struct {
	// Entered, if set, is called in the middle of each purchase.
	Entered func(ctx context.Context, account string)
	// Runs counts how often handlers have begun.
	Runs *atomic.Int64

	accounts map[string]int64
}

var (
	_ shop.ShopRefHandler = (*Service)(nil)
	_ rpc.State           = (*Service)(nil)
)

// Export serves the service on a node.
func (s *Service) Export(ctx context.Context, node *rpc.Node, opts ...rpc.ExportOption) error {
	s.accounts = map[string]int64{}
	return shop.ExportShop(ctx, node, Name, s, append(opts, rpc.WithState(s))...)
}

// Echo implements the service.
func (s *Service) Echo(_ context.Context, order *shop.Order) (*shop.Order, error) { return order, nil }

// Buy implements the service.
func (s *Service) Buy(ctx context.Context, account string, cents int64) (int64, error) {
	if s.Runs != nil {
		s.Runs.Add(1)
	}
	if cents < 0 {
		return 0, &shop.SoldOut{Item: account, Left: 7}
	}
	if s.Entered != nil {
		s.Entered(ctx, account)
	}
	s.accounts[account] += cents
	return s.accounts[account], nil
}

// Total implements the service.
func (s *Service) Total(_ context.Context, account string) (int64, error) {
	return s.accounts[account], nil
}

// Fail implements the service.
func (s *Service) Fail(_ context.Context, how string) error {
	switch how {
	case "declared":
		return &shop.SoldOut{Item: "tea"}
	case "coded":
		return rpc.Errorf(rpc.NoSpace, "the shelf is full")
	}
	return errors.New(how)
}

// Note implements the service.
func (s *Service) Note(_ context.Context, account string, cents int64) error {
	s.accounts[account] += cents
	return nil
}

// Measure implements the service.
func (s *Service) Measure(ctx context.Context, body *rpc.Ref[[]byte]) (int64, error) {
	b, err := body.Load(ctx)
	return int64(len(b)), err
}

// Deposit implements the service. It holds a part of the body at a time.
func (s *Service) Deposit(ctx context.Context, account string, body *rpc.Ref[[]byte]) (string, error) {
	if s.Runs != nil {
		s.Runs.Add(1)
	}
	if account == "" {
		return "", &shop.SoldOut{Item: account}
	}
	if s.Entered != nil {
		s.Entered(ctx, account)
	}
	place, err := body.Place(ctx)
	if err != nil {
		return "", err
	}
	h, b := sha256.New(), make([]byte, 64<<10)
	for at := int64(0); at < place.Size(); at += int64(len(b)) {
		b = b[:min(int64(len(b)), place.Size()-at)]
		if err := place.Read(ctx, at, b); err != nil {
			return "", err
		}
		_, _ = h.Write(b)
	}
	s.accounts[account] += place.Size()
	return fmt.Sprintf("%s %x", account, h.Sum(nil)), nil
}

// Repeat implements the service.
func (s *Service) Repeat(ctx context.Context, body *rpc.Ref[[]byte], times int32) (*rpc.Ref[[]byte], error) {
	b, err := body.Load(ctx)
	return rpc.RefOf(bytes.Repeat(b, int(times))), err
}

// Make implements the service.
func (s *Service) Make(_ context.Context, size int64) (*rpc.Ref[[]byte], error) {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i)
	}
	return rpc.RefOf(b), nil
}

// Both implements the service.
func (s *Service) Both(ctx context.Context, a, b *rpc.Ref[[]byte]) (int64, error) {
	n, err := s.Measure(ctx, a)
	m, err2 := s.Measure(ctx, b)
	return n + m, errors.Join(err, err2)
}

// Snapshot implements rpc.State.
func (s *Service) Snapshot() ([]byte, error) { return json.Marshal(s.accounts) }

// Restore implements rpc.State.
func (s *Service) Restore(b []byte) error {
	s.accounts = map[string]int64{}
	return json.Unmarshal(b, &s.accounts)
}
