package lab_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/internal/fresh"
	"github.com/bifrost-rack/bifrost/rpc/gen"
)

const (
	prefix  = "github.com/bifrost-rack/bifrost/rpc/gen/internal/lab/gen-go/"
	options = "go:package_prefix=" + prefix + ",skip_remote"
)

// TestStubsAreFresh holds what is committed against the generator: it is the
// golden output, and it compiles.
func TestStubsAreFresh(t *testing.T) {
	for _, file := range []string{"lab.thrift", "shared.thrift"} {
		files, err := gen.Generate(file, os.ReadFile, gen.Options{PackagePrefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			have, err := os.ReadFile(filepath.Join("gen-go", f.Name))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(have, f.Content) {
				t.Errorf("%s is stale: go generate rpc/gen/internal/lab", f.Name)
			}
		}
	}
}

func TestThriftCodeIsFresh(t *testing.T) {
	fresh.Check(t, "gen-go/shared", "shared.thrift", options)
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
