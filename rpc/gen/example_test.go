package gen_test

import (
	"fmt"
	"strings"

	"github.com/bifrost-rack/bifrost/rpc/gen"
)

func ExampleGenerate() {
	idl := `namespace go photos
struct Photo { 1: i32 width, 2: binary pixels }
service Lab {
  Photo develop(1: binary raw (bifrost.ref)) (bifrost.ref, bifrost.policy = "recover", bifrost.max_failures = "100")
  oneway void note(1: string line)
} (bifrost.max_failures = "0")`
	read := func(string) ([]byte, error) { return []byte(idl), nil }
	files, err := gen.Generate("lab.thrift", read, gen.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(files[0].Name)
	for line := range strings.Lines(string(files[0].Content)) {
		if strings.HasPrefix(line, "\tDevelop(") || strings.Contains(line, "Policy(") || strings.Contains(line, "Failures(") {
			fmt.Println(strings.TrimSpace(line))
		}
	}
	// Output:
	// photos/lab-bifrost.go
	// Develop(ctx context.Context, raw *rpc.Ref[[]byte]) (*rpc.Ref[*Photo], error)
	// stub.WithDeclaredPolicy(rpc.PolicyRecover, "develop", "develop.ref"),
	// rpc.WithMethodPolicy(rpc.PolicyRecover, "develop", "develop.ref"),
	// rpc.WithMaxFailures(0, "note"),
	// rpc.WithMaxFailures(100, "develop", "develop.ref"),
}

// What cannot be a reference is refused with its line and what to do.
func ExampleGenerate_error() {
	idl := "service Counts {\n  void put(1: i64 count (bifrost.ref))\n}\n"
	_, err := gen.Generate("counts.thrift", func(string) ([]byte, error) { return []byte(idl), nil }, gen.Options{})
	fmt.Println(err)
	// Output:
	// counts.thrift:2: argument count of method put: a value of type i64 cannot be a reference; it is small: pass it by value
}
