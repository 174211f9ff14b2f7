package crosstest

import (
	"testing"

	"github.com/bifrost-rack/bifrost/internal/fresh"
)

func TestGeneratedCodeIsFresh(t *testing.T) {
	fresh.Check(t, "gen-go/crosstest", "crosstest.thrift", "go:skip_remote")
}
