// Package p4 holds Bifröst's data plane: bifrost.p4, and what p4c made of it,
// which any v1model target takes through P4Runtime (bmv2's simple_switch_grpc,
// or the project's own software switch, which lives in the packages below).
// `make p4` recompiles; bifrost.stamp ties the compiled files to their source.
package p4

import (
	_ "embed"
)

// CPUPort is the switch port behind which the Gatekeeper sits; bifrost.p4
// names the same number.
const CPUPort = 510

// JSON is the compiled program: P4Runtime's device config for v1model targets.
//
//go:embed bifrost.json
var JSON []byte

// Info is the program's P4Info in protobuf text format.
//
//go:embed bifrost.p4info.txt
var Info []byte

//go:embed bifrost.p4
var source []byte

//go:embed bifrost.stamp
var stamp []byte
