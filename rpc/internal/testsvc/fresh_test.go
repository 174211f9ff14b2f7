package testsvc

import (
	"path/filepath"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/fresh"
)

func TestGeneratedCodeIsFresh(t *testing.T) {
	dir, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	fresh.Check(t, dir, "testsvc.thrift", "go:package_prefix=github.com/bifrost-rack/bifrost/rpc/idl/,skip_remote")
}
