// Package idl holds the Thrift definitions that applications include:
//
//	include "bifrost.thrift"
//	service Arrays { void increment(1: bifrost.GlobalPointer array, 2: i64 size) }
//
// Package bifrost, below, is what the Thrift compiler makes of them; generate
// with the same package prefix so that your code refers to that one package:
//
//	thrift -I $(go list -m -f '{{.Dir}}' github.com/bifrost-rack/bifrost)/rpc/idl \
//	    --gen go:package_prefix=github.com/bifrost-rack/bifrost/rpc/idl/ arrays.thrift
package idl

import _ "embed"

// File is the name by which IDL includes the definitions.
const File = "bifrost.thrift"

// Text is the content of [File].
//
//go:embed bifrost.thrift
var Text string

//go:generate thrift -out . --gen go:package_prefix=github.com/bifrost-rack/bifrost/rpc/idl/ bifrost.thrift
//go:generate gofmt -w bifrost
