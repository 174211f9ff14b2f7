package crash

import (
	"testing"

	"github.com/bifrost-rack/bifrost/internal/fresh"
)

func TestGeneratedCodeIsFresh(t *testing.T) {
	fresh.Check(t, "gen-go/actor", "actor.thrift", "go:package_prefix=github.com/bifrost-rack/bifrost/rpc/idl/,skip_remote")
}
