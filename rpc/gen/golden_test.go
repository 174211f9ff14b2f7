package gen

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestGolden holds the stubs of IDL that the installed Thrift compiler may not know
// against files: uuid came with Thrift 0.18. (What it knows compiles, in internal/lab.)
func TestGolden(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.thrift")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no input: %v", err)
	}
	for _, input := range inputs {
		files, err := Generate(input, os.ReadFile, Options{})
		if err != nil {
			t.Fatal(err)
		}
		golden := strings.TrimSuffix(input, ".thrift") + ".go.golden"
		if *update {
			if err := os.WriteFile(golden, files[0].Content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(golden); err != nil || !bytes.Equal(files[0].Content, want) {
			t.Errorf("%s is stale (-update rewrites it): %v", golden, err)
		}
	}
}

// TestOldUUID: IDL from before Thrift 0.18 may define a type of that name.
func TestOldUUID(t *testing.T) {
	idl := "typedef string uuid\nservice S { uuid f(1: uuid id, 2: binary b (bifrost.ref)) }"
	files, err := Generate("s.thrift", func(string) ([]byte, error) { return []byte(idl), nil }, Options{})
	if err != nil || !bytes.Contains(files[0].Content, []byte("F(ctx context.Context, id UUID, b *rpc.Ref[[]byte]) (UUID, error)")) {
		t.Errorf("%v:\n%s", err, files)
	}
}
