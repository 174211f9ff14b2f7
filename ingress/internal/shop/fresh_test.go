package shop_test

import (
	"testing"

	"github.com/bifrost-rack/bifrost/internal/fresh"
)

func TestGeneratedCodeIsFresh(t *testing.T) {
	fresh.Check(t, "gen-go/shop", "shop.thrift", "go:skip_remote")
}
