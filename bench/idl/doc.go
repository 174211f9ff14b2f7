// Package idl holds the interfaces that the benchmarks call, in Thrift and in
// Protocol Buffers, and the code generated from them.
package idl

//go:generate thrift -out gen-go --gen go:package_prefix=github.com/bifrost-rack/bifrost/rpc/idl/,skip_remote bench.thrift
//go:generate thrift -nowarn -out gen-go --gen go:skip_remote marked.thrift
//go:generate go run github.com/bifrost-rack/bifrost/cmd/bifrost gen marked.thrift --out gen-go
//go:generate gofmt -w gen-go
//go:generate protoc --go_out=. --go_opt=module=github.com/bifrost-rack/bifrost/bench/idl --go-grpc_out=. --go-grpc_opt=module=github.com/bifrost-rack/bifrost/bench/idl bench.proto
