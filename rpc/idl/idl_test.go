package idl

import (
	"testing"

	"github.com/bifrost-rack/bifrost/internal/fresh"
)

func TestGeneratedCodeIsFresh(t *testing.T) {
	fresh.Check(t, "bifrost", "bifrost.thrift", "go:package_prefix=github.com/bifrost-rack/bifrost/rpc/idl/")
}
