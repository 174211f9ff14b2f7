// Package testsvc is the service that the runtime's tests call, as the unmodified
// Thrift compiler generates it.
package testsvc

//go:generate thrift -out .. --gen go:package_prefix=github.com/bifrost-rack/bifrost/rpc/idl/,skip_remote testsvc.thrift
//go:generate gofmt -w .
