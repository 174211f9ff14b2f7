// Package lab has the IDL that the generator's tests use, and what Thrift's
// compiler and bifrost gen make of it.
package lab

//go:generate thrift -nowarn -out gen-go --gen go:package_prefix=github.com/bifrost-rack/bifrost/rpc/gen/internal/lab/gen-go/,skip_remote shared.thrift
//go:generate thrift -nowarn -out gen-go --gen go:package_prefix=github.com/bifrost-rack/bifrost/rpc/gen/internal/lab/gen-go/,skip_remote lab.thrift
//go:generate thrift -nowarn -out gen-go --gen go:package_prefix=github.com/bifrost-rack/bifrost/rpc/idl/,skip_remote byhand.thrift
//go:generate go run github.com/bifrost-rack/bifrost/cmd/bifrost gen lab.thrift shared.thrift --out gen-go --package-prefix github.com/bifrost-rack/bifrost/rpc/gen/internal/lab/gen-go/
//go:generate gofmt -w gen-go
